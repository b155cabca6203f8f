//! Lists of the broker's objects, read once or kept up to date (`--watch`).

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use mete_model::Span;
use mete_proto::admin::v1::object::Object as Row;
use mete_proto::admin::v1::{Filter, Kind, Object, WatchRequest, WatchResponse};
use serde_json::json;

use super::client::{Client, admin};
use super::error::Outcome;
use super::print::{CLEAR, Format, Listing, note, out, reader_is_gone};

/// How long after a broken stream it is opened again.
const PAUSE: Duration = Duration::from_millis(500);

/// Shows the rows of a kind that pass the filter; with `--watch` until Ctrl-C.
///
/// # Errors
/// As [`super::client::Cluster::list`]; a broken watch is opened again, a refused one is an error.
pub async fn show(
    client: &Client,
    kind: Kind,
    filter: Filter,
    shape: impl Fn(u64, Vec<Object>) -> Listing,
) -> Outcome {
    let (revision, objects) = client.cluster.list(kind, filter.clone()).await?;
    // With a number of seconds the whole command is done again and again instead.
    if client.globals.watch != Some(Span::ZERO) {
        return shape(revision, objects).print(&client.style);
    }
    let mut table = Table::new(objects);
    table.draw(client, revision, &shape)?;
    let mut after = revision;
    loop {
        let request = WatchRequest {
            kinds: vec![kind.into()],
            filter: Some(filter.clone()),
            from_revision: Some(after),
        };
        let opened = client
            .cluster
            .read(|channel| {
                let request = request.clone();
                async move { admin(channel).watch(request).await }
            })
            .await;
        let broken = match opened {
            Ok(mut stream) => loop {
                match stream.message().await {
                    Ok(Some(change)) => {
                        after = after.max(change.revision);
                        table.take(client, change, &shape)?;
                    }
                    Ok(None) => break None,
                    Err(status) => break Some(status.into()),
                }
                if reader_is_gone() {
                    return Ok(());
                }
            },
            Err(error) => Some(error),
        };
        if let Some(error) = broken {
            let error: super::error::CliError = error;
            if !error.is_passing() {
                return Err(error);
            }
            note(&format!(
                "the watch broke ({}), going on after revision {after}",
                error.sentence
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The rows as they are now.
struct Table {
    rows: BTreeMap<String, Object>,
}

impl Table {
    fn new(objects: Vec<Object>) -> Self {
        let rows = objects
            .into_iter()
            .filter_map(|object| Some((key(&object)?, object)));
        Self {
            rows: rows.collect(),
        }
    }

    fn draw(
        &self,
        client: &Client,
        revision: u64,
        shape: &impl Fn(u64, Vec<Object>) -> Listing,
    ) -> Outcome {
        let mut listing = shape(revision, self.rows.values().cloned().collect());
        if client.style.format.is_machine() {
            listing.choose(&client.style)?;
            return out(&listing.text(&client.style)?);
        }
        if std::io::stdout().is_terminal() {
            out(CLEAR)?;
        }
        listing.print(&client.style)
    }

    /// Takes a change and shows it: people at a terminal see the whole table, all others what
    /// changed.
    fn take(
        &mut self,
        client: &Client,
        change: WatchResponse,
        shape: &impl Fn(u64, Vec<Object>) -> Listing,
    ) -> Outcome {
        if change.put.is_empty() && change.removed.is_empty() {
            return Ok(());
        }
        let removed: Vec<String> = change.removed.into_iter().map(|key| key.key).collect();
        for key in &removed {
            self.rows.remove(key);
        }
        let put = change.put.clone();
        self.rows.extend(
            put.into_iter()
                .filter_map(|object| Some((key(&object)?, object))),
        );
        let machine = client.style.format.is_machine();
        if !machine && std::io::stdout().is_terminal() {
            return self.draw(client, change.revision, shape);
        }
        let mut changed = shape(change.revision, change.put);
        changed.choose(&client.style)?;
        if machine {
            let gone = removed.iter().map(|key| {
                if client.style.format == Format::Name {
                    return format!("{key}\n");
                }
                json!({ "removed": key, "revision": change.revision }).to_string() + "\n"
            });
            return out(&(changed.text(&client.style)? + &gone.collect::<String>()));
        }
        changed.footer = String::new();
        let text = changed.text(&client.style)?;
        let lines = text.lines().skip(1).map(|line| format!("{line}\n"));
        let gone = removed.iter().map(|key| format!("{key}  removed\n"));
        out(&lines.chain(gone).collect::<String>())
    }
}

/// The key of a row, as `removed` names it.
fn key(object: &Object) -> Option<String> {
    Some(match object.object.as_ref()? {
        Row::Node(node) => node.name.clone(),
        Row::Framework(framework) => framework.id.clone(),
        Row::Role(role) => role.path.clone(),
        Row::Claim(claim) => {
            let id = &claim.status.as_ref()?.claim.as_ref()?.id;
            format!("{}/{id}", claim.framework_id)
        }
        Row::Task(task) => {
            let run = task.run.as_ref()?;
            format!("{}/{}#{}", task.framework_id, run.task, run.attempt)
        }
        Row::Offer(offer) => offer.id.clone(),
    })
}

#[cfg(test)]
mod tests {
    use mete_proto::admin::v1::Node;

    use super::*;

    #[test]
    fn a_removed_row_is_the_one_that_its_key_names() {
        let node = Node {
            name: "n1".to_owned(),
            ..Node::default()
        };
        let object = Object {
            revision: 1,
            object: Some(Row::Node(node)),
        };
        let mut table = Table::new(vec![object]);
        assert!(table.rows.remove("n1").is_some());
    }
}
