//! `mete events`: what happened, once each and in order, also over a broken stream.

use std::time::Duration;

use mete_model::Code;
use mete_proto::admin::v1::GetStatusRequest;
use mete_proto::events::v1::{Event, WatchRequest};
use serde_json::json;

use super::support::client::{Client, admin, events};
use super::support::error::{CliError, Outcome};
use super::support::print::{Format, Listing, Row, note, out, reader_is_gone};
use super::support::words;
use crate::args::objects::Events;
use crate::args::values::Since;

/// Looked back when nothing is said and nothing is followed.
const USUAL_BACK_MS: u64 = 3_600_000;

/// How long after a broken stream it is opened again.
const PAUSE: Duration = Duration::from_millis(500);

/// Shows them.
///
/// # Errors
/// The refusal: `COMPACTED` when what was asked for is no longer held.
pub async fn run(client: &Client, flags: Events) -> Outcome {
    let follow = flags.follow || client.globals.watch.is_some();
    let mut request = WatchRequest {
        follow,
        ..WatchRequest::default()
    };
    match flags.since {
        Some(Since::Revision(revision)) => {
            check_reached(client, revision, follow).await?;
            request.from_revision = Some(revision);
        }
        Some(Since::Ago(ms)) => request.since_ms_ago = Some(ms),
        None if !follow => request.since_ms_ago = Some(USUAL_BACK_MS),
        None => {}
    }
    let mut printer = Printer {
        client,
        rows: Vec::new(),
        last: (0, 0),
        follow,
    };
    loop {
        match copy(client, &request, &mut printer).await {
            Ok(()) if !follow || reader_is_gone() => return printer.finish(),
            Ok(()) => {}
            Err(error) if follow && error.is_passing() => {
                note(&format!("the stream broke ({}), going on", error.sentence));
            }
            Err(error) => return Err(error),
        }
        // The last revision again, since it may have had more events than came; they are told
        // apart.
        if printer.last.0 > 0 {
            request.from_revision = Some(printer.last.0.saturating_sub(1));
            request.since_ms_ago = None;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Says so when nothing has happened after `revision` because the cluster has not come that far.
///
/// # Errors
/// `INVALID` when nobody would wait for it.
async fn check_reached(client: &Client, revision: u64, follow: bool) -> Outcome {
    let call =
        |channel| async move { admin(channel).get_status(GetStatusRequest::default()).await };
    let newest = client.cluster.call(call).await?.revision;
    match ahead(revision, newest, follow) {
        None => Ok(()),
        Some(said) if follow => {
            note(&said);
            Ok(())
        }
        Some(said) => Err(CliError::new(Code::Invalid, said)
            .fact("is it another cluster's, or older than a cluster that was founded anew?")
            .next("mete events --since 1h", "the last hour")
            .next(
                format!("mete events -f --since {revision}"),
                "wait until it is reached",
            )),
    }
}

/// What is to be said of a revision that is not reached yet.
fn ahead(revision: u64, newest: u64, follow: bool) -> Option<String> {
    let said = format!("revision {revision} is not reached yet, the newest is {newest}");
    let waits = if follow {
        "; nothing is shown until then"
    } else {
        ""
    };
    (revision > newest).then(|| said + waits)
}

async fn copy(client: &Client, request: &WatchRequest, printer: &mut Printer<'_>) -> Outcome {
    let mut stream = client
        .cluster
        .read(|channel| {
            let request = *request;
            async move { events(channel).watch(request).await }
        })
        .await?;
    while let Some(event) = stream.message().await? {
        printer.take(event)?;
        if reader_is_gone() {
            break;
        }
    }
    Ok(())
}

struct Printer<'a> {
    client: &'a Client,
    /// Kept until the end where the format needs all of them at once.
    rows: Vec<Row>,
    /// Revision and number of the last one.
    last: (u64, u32),
    follow: bool,
}

impl Printer<'_> {
    fn take(&mut self, event: Event) -> Outcome {
        let place = (event.revision, event.number);
        if place <= self.last {
            return Ok(());
        }
        self.last = place;
        let row = row(&event);
        let style = &self.client.style;
        if !self.follow {
            self.rows.push(row);
            return Ok(());
        }
        let wanted = |(field, value): &(String, String)| {
            row.facts.get(field).is_some_and(|fact| {
                let text = fact
                    .as_str()
                    .map_or_else(|| fact.to_string(), str::to_owned);
                text == *value
            })
        };
        if !style.filter.iter().all(wanted) {
            return Ok(());
        }
        match style.format {
            Format::Table | Format::Wide => {
                let [time, kind, object, message, ..] = row.cells.as_slice() else {
                    return Ok(());
                };
                out(&format!("{time}  {kind:<24} {object:<28} {message}\n"))
            }
            Format::Json | Format::Jsonl | Format::Yaml | Format::Name => {
                let mut listing = listing(vec![row]);
                let name = style.format == Format::Name;
                let format = if name { Format::Name } else { Format::Jsonl };
                let style = super::support::print::Style {
                    format,
                    ..style.clone()
                };
                listing.choose(&style)?;
                out(&listing.text(&style)?)
            }
        }
    }

    fn finish(self) -> Outcome {
        if self.follow {
            return Ok(());
        }
        let mut listing = listing(self.rows);
        listing.revision = (self.last.0 > 0).then_some(self.last.0);
        listing.print(&self.client.style)
    }
}

fn listing(rows: Vec<Row>) -> Listing {
    Listing {
        kind: "EventList",
        revision: None,
        columns: vec!["TIME", "KIND", "OBJECT", "MESSAGE", "ACTOR", "REVISION"],
        narrow: 4,
        rows,
        footer: String::new(),
        warnings: Vec::new(),
    }
}

fn row(event: &Event) -> Row {
    let time = words::time(event.at_ms);
    Row::new(
        format!("{}.{}", event.revision, event.number),
        vec![
            time.as_str().unwrap_or_default().to_owned(),
            event.kind.clone(),
            event.object.clone(),
            event.message.clone(),
            event.actor.clone(),
            event.revision.to_string(),
        ],
        json!({
            "revision": event.revision,
            "number": event.number,
            "at": time,
            "kind": event.kind,
            "object": event.object,
            "message": event.message,
            "actor": words::known(&event.actor),
            "facts": event.facts,
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Globals;
    use crate::cli::support::client::Cluster;
    use crate::cli::support::print::Style;

    #[test]
    fn a_revision_that_is_not_reached_yet_is_said() {
        assert_eq!(ahead(7, 7, true), None);
        assert_eq!(
            ahead(8, 7, true).as_deref(),
            Some("revision 8 is not reached yet, the newest is 7; nothing is shown until then")
        );
        let said = ahead(8, 7, false).expect("said");
        assert!(!said.contains("until"), "{said}");
    }

    fn event(revision: u64, number: u32) -> Event {
        Event {
            revision,
            number,
            kind: "task_ended".to_owned(),
            ..Event::default()
        }
    }

    #[test]
    fn an_event_that_comes_again_after_a_broken_stream_is_shown_once() {
        let client = Client {
            cluster: Cluster::new(Vec::new(), PAUSE),
            style: Style::default(),
            globals: Globals::default(),
        };
        let mut printer = Printer {
            client: &client,
            rows: Vec::new(),
            last: (0, 0),
            follow: false,
        };
        for (revision, number) in [(5, 0), (5, 1), (5, 0), (5, 1), (5, 2), (6, 0)] {
            printer.take(event(revision, number)).expect("taken");
        }
        let names: Vec<&str> = printer.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["5.0", "5.1", "5.2", "6.0"]);
    }
}
