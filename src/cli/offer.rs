//! `mete offer`: list, show, rescind.

use mete_model::{Bytes, Code, MilliCpu};
use mete_proto::admin::v1::object::Object as Content;
use mete_proto::admin::v1::{Filter, Kind, Object, OfferRow, RescindOffersRequest};
use serde_json::{Value, json};

use super::support::client::{Client, admin};
use super::support::error::{CliError, Outcome};
use super::support::print::{Listing, Row, print_one};
use super::support::{verdicts, watch, words};
use crate::args::objects::{Offer as Command, OfferList};

/// Does what was asked.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client, command: Command) -> Outcome {
    match command {
        Command::List(flags) => list(client, flags).await,
        Command::Show { offer } => show(client, &offer).await,
        Command::Rescind { offers } => rescind(client, offers).await,
    }
}

async fn list(client: &Client, flags: OfferList) -> Outcome {
    let filter = Filter {
        framework: flags.framework.unwrap_or_default(),
        node: flags.node.unwrap_or_default(),
        ..Filter::default()
    };
    watch::show(client, Kind::Offer, filter, listing).await
}

/// Offers as a listing.
pub fn listing(revision: u64, objects: Vec<Object>) -> Listing {
    let rows = objects.into_iter().filter_map(|object| {
        let Content::Offer(offer) = object.object? else {
            return None;
        };
        Some(row(&offer))
    });
    Listing {
        kind: "OfferList",
        revision: Some(revision),
        columns: vec![
            "OFFER",
            "FRAMEWORK",
            "ROLE",
            "NODE",
            "CPU",
            "MEMORY",
            "DEVICES",
            "AGE",
            "EXPIRES",
            "CLAIM",
            "SLOTS",
            "STATE",
            "CORES",
        ],
        narrow: 9,
        rows: rows.collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

fn row(offer: &OfferRow) -> Row {
    let resources = offer.resources.clone().unwrap_or_default();
    Row::new(
        offer.id.clone(),
        vec![
            offer.id.clone(),
            offer.framework.clone(),
            offer.role.clone(),
            offer.node.clone(),
            MilliCpu(resources.cpu_milli).to_string(),
            Bytes(resources.memory_bytes).to_string(),
            words::devices(&offer.resources),
            words::span(offer.age_ms),
            words::span(offer.expires_in_ms),
            offer.claim.clone(),
            offer.slots.to_string(),
            offer.state.clone(),
            resources.cores,
        ],
        json!({
            "id": offer.id,
            "framework": offer.framework,
            "framework_id": offer.framework_id,
            "role": offer.role,
            "claim": words::known(&offer.claim),
            "node": offer.node,
            "agent_id": offer.agent_id,
            "resources": words::resources(&offer.resources),
            "slots": offer.slots,
            "age_ms": offer.age_ms,
            "expires_in_ms": offer.expires_in_ms,
            "state": offer.state,
        }),
    )
}

async fn show(client: &Client, id: &str) -> Outcome {
    let (revision, object) = client.cluster.get(Kind::Offer, id).await?;
    let Some(Content::Offer(offer)) = object.object else {
        return Err(CliError::new(Code::NotFound, format!("no offer '{id}'")));
    };
    let resources = offer.resources.clone().unwrap_or_default();
    let disk = match resources.disk_bytes {
        0 => String::new(),
        bytes => Bytes(bytes).to_string(),
    };
    let text = words::sheet(&[
        ("offer", offer.id.clone()),
        ("state", offer.state.clone()),
        (
            "framework",
            format!("{} ({})", offer.framework, offer.framework_id),
        ),
        ("role", offer.role.clone()),
        ("claim", offer.claim.clone()),
        ("node", format!("{} ({})", offer.node, offer.agent_id)),
        ("holds", words::amounts(&offer.resources)),
        ("disk", disk),
        ("slots", offer.slots.to_string()),
        ("age", words::span(offer.age_ms)),
        ("expires in", words::span(offer.expires_in_ms)),
    ]);
    let item = Value::Object(row(&offer).facts);
    print_one(&client.style, "Offer", Some(revision), item, &text)
}

async fn rescind(client: &Client, offers: Vec<String>) -> Outcome {
    let request = RescindOffersRequest {
        offers: offers.clone(),
        dry_run: client.globals.dry_run,
    };
    let answer = client
        .cluster
        .call(|channel| {
            let request = request.clone();
            async move { admin(channel).rescind_offers(request).await }
        })
        .await?;
    let word = if client.globals.dry_run {
        "would be taken back"
    } else {
        "taken back"
    };
    verdicts::show(client, "RescindedOffers", &offers, &answer.offers, word, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::print::Style;

    #[test]
    fn an_offer_says_how_long_it_stands() {
        let offer = OfferRow {
            id: "o-3-17".to_owned(),
            framework: "batch".to_owned(),
            role: "ml".to_owned(),
            node: "n07".to_owned(),
            age_ms: 400,
            expires_in_ms: 9_600,
            ..OfferRow::default()
        };
        let object = Object {
            revision: 1,
            object: Some(Content::Offer(offer)),
        };
        let text = listing(1, vec![object])
            .text(&Style::default())
            .expect("a table");
        assert_eq!(
            text,
            "OFFER   FRAMEWORK  ROLE  NODE  CPU  MEMORY  DEVICES  AGE   EXPIRES\n\
             o-3-17  batch      ml    n07   0    0       -        0.4s  9.6s\n"
        );
    }
}
