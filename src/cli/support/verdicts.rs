//! Answers that carry a verdict for each thing: what was done, what was refused and why.

use mete_proto::types::v1::Verdict;
use serde_json::json;

use super::client::Client;
use super::error::{CliError, Outcome};
use super::print::{Listing, Row, note};

/// Shows one verdict for each name; the first refusal is the error.
///
/// # Errors
/// The first verdict that is not `OK`; the others are on stderr.
pub fn show(
    client: &Client,
    kind: &'static str,
    names: &[String],
    verdicts: &[Verdict],
    done: &str,
    revision: u64,
) -> Outcome {
    let rows = names.iter().zip(verdicts).map(|(name, verdict)| {
        let text = if verdict.code == "OK" {
            done.to_owned()
        } else {
            verdict.detail.clone()
        };
        let facts = json!({
            "name": name,
            "code": verdict.code,
            "detail": super::words::known(&verdict.detail),
            "facts": verdict.facts,
            "dry_run": client.globals.dry_run,
        });
        Row::new(
            name.clone(),
            vec![name.clone(), verdict.code.clone(), text],
            facts,
        )
    });
    let listing = Listing {
        kind,
        revision: (revision != 0).then_some(revision),
        columns: vec!["NAME", "VERDICT", "DETAIL"],
        narrow: 3,
        rows: rows.collect(),
        footer: String::new(),
        warnings: Vec::new(),
    };
    listing.print(&client.style)?;
    let mut refused = names
        .iter()
        .zip(verdicts)
        .filter(|(_, verdict)| verdict.code != "OK");
    let Some((name, first)) = refused.next() else {
        return Ok(());
    };
    let others = refused.count();
    if others > 0 {
        note(&format!(
            "{} of {} were refused",
            others.saturating_add(1),
            verdicts.len()
        ));
    }
    let mut error = CliError::from_verdict(&first.code, &first.detail);
    if !error.sentence.contains(name.as_str()) {
        error.sentence = format!("{name}: {}", error.sentence);
    }
    Err(error)
}
