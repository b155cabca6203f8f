//! `mete framework`: list, show, set, rm.

use mete_model::Code;
use mete_proto::admin::v1::object::Object as Content;
use mete_proto::admin::v1::{
    ClaimRow, Filter, Framework, Kind, Object, RemoveFrameworkRequest, SetFrameworkRequest,
};
use serde_json::{Value, json};

use super::support::client::{Client, admin};
use super::support::confirm::confirm;
use super::support::error::{CliError, Outcome};
use super::support::print::{Listing, Row, print_checked, print_one};
use super::support::{watch, words};
use crate::args::objects::{Framework as Command, FrameworkSet};

/// Does what was asked.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client, command: Command) -> Outcome {
    match command {
        Command::List => watch::show(client, Kind::Framework, Filter::default(), listing).await,
        Command::Show { framework } => show(client, &framework).await,
        Command::Set(flags) => set(client, flags).await,
        Command::Rm { framework } => remove(client, &framework).await,
    }
}

fn of(object: Object) -> Option<Framework> {
    let Content::Framework(framework) = object.object? else {
        return None;
    };
    Some(framework)
}

/// Frameworks as a listing.
pub fn listing(revision: u64, objects: Vec<Object>) -> Listing {
    Listing {
        kind: "FrameworkList",
        revision: Some(revision),
        columns: vec![
            "NAME",
            "STATE",
            "ROLES",
            "TASKS",
            "CLAIMS",
            "WAITING",
            "OFFERS",
            "CPU",
            "SINCE",
            "ID",
            "PRINCIPAL",
            "SUPPRESSED",
            "STORE",
            "ADDRESS",
        ],
        narrow: 9,
        rows: objects
            .into_iter()
            .filter_map(of)
            .map(|framework| row(&framework))
            .collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

fn row(framework: &Framework) -> Row {
    let granted = framework.granted.clone().unwrap_or_default();
    Row::new(
        framework.name.clone(),
        vec![
            framework.name.clone(),
            framework.state.clone(),
            framework.roles.join(","),
            framework.tasks.to_string(),
            framework.claims.to_string(),
            framework.waiting.to_string(),
            framework.offers.to_string(),
            mete_model::MilliCpu(granted.cpu_milli).to_string(),
            words::ago(framework.state_since_ms),
            framework.id.clone(),
            framework.principal.clone(),
            framework.suppressed_roles.join(","),
            mete_model::Bytes(framework.store_bytes).to_string(),
            framework.service_address.clone(),
        ],
        facts(framework),
    )
    .amiss(amiss(framework))
}

/// A framework that was torn down on purpose is as it shall be.
fn amiss(framework: &Framework) -> String {
    match framework.state.as_str() {
        "connected" | "torn_down" => String::new(),
        state => format!("is {state} for {}", words::ago(framework.state_since_ms)),
    }
}

fn facts(framework: &Framework) -> Value {
    json!({
        "name": framework.name,
        "id": framework.id,
        "principal": words::known(&framework.principal),
        "incarnation": framework.incarnation,
        "state": framework.state,
        "state_since": words::time(framework.state_since_ms),
        "roles": framework.roles,
        "suppressed_roles": framework.suppressed_roles,
        "plain_offers": framework.plain_offers,
        "failover_timeout_ms": framework.failover_timeout_ms,
        "labels": framework.labels,
        "service_address": words::known(&framework.service_address),
        "tasks": framework.tasks,
        "claims": framework.claims,
        "waiting": framework.waiting,
        "offers": framework.offers,
        "store_bytes": framework.store_bytes,
        "granted": words::resources(&framework.granted),
        "demand_version": framework.demand_version,
    })
}

async fn find(client: &Client, name: &str) -> Outcome<(u64, Framework)> {
    let (revision, object) = client.cluster.get(Kind::Framework, name).await?;
    let missing = || CliError::new(Code::NotFound, format!("no framework '{name}'"));
    Ok((revision, of(object).ok_or_else(missing)?))
}

async fn show(client: &Client, name: &str) -> Outcome {
    let (revision, framework) = find(client, name).await?;
    let filter = Filter {
        framework: framework.id.clone(),
        ..Filter::default()
    };
    let (_, objects) = client.cluster.list(Kind::Claim, filter).await?;
    let claims = claims(revision, objects);
    let mut item = facts(&framework);
    item["claim_list"] = claims
        .rows
        .iter()
        .map(|row| Value::Object(row.facts.clone()))
        .collect();
    let mut text = words::sheet(&[
        ("framework", framework.name.clone()),
        ("id", framework.id.clone()),
        (
            "state",
            format!(
                "{} for {}",
                framework.state,
                words::ago(framework.state_since_ms)
            ),
        ),
        ("roles", framework.roles.join(", ")),
        ("suppressed", framework.suppressed_roles.join(", ")),
        ("tasks", framework.tasks.to_string()),
        (
            "waiting",
            format!("{} tasks of {} claims", framework.waiting, framework.claims),
        ),
        ("offers", framework.offers.to_string()),
        ("granted", words::amounts(&framework.granted)),
        (
            "store",
            mete_model::Bytes(framework.store_bytes).to_string(),
        ),
        ("service", framework.service_address.clone()),
        ("failover", words::span(framework.failover_timeout_ms)),
        ("labels", words::labels(&framework.labels)),
    ]);
    if !claims.rows.is_empty() {
        text = format!("{text}\n{}", claims.text(&client.style.as_table())?);
    }
    let amiss = amiss(&framework);
    print_checked(
        &client.style,
        "Framework",
        Some(revision),
        item,
        &text,
        &amiss,
    )
}

/// Claims as a listing.
pub fn claims(revision: u64, objects: Vec<Object>) -> Listing {
    let rows = objects.into_iter().filter_map(|object| {
        let Content::Claim(claim) = object.object? else {
            return None;
        };
        claim_row(&claim)
    });
    Listing {
        kind: "ClaimList",
        revision: Some(revision),
        columns: vec![
            "CLAIM", "ROLE", "EACH", "LAUNCHED", "OFFERED", "AGE", "REASON", "DETAIL",
        ],
        narrow: 7,
        rows: rows.collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

fn claim_row(row: &ClaimRow) -> Option<Row> {
    let status = row.status.as_ref()?;
    let claim = status.claim.as_ref()?;
    let shape = claim.shape.clone().unwrap_or_default();
    let devices: Vec<Value> = shape
        .devices
        .iter()
        .map(|want| json!({ "class": want.class, "count": want.count, "milli": want.milli }))
        .collect();
    let mut each = format!("{} cpu", mete_model::MilliCpu(shape.cpu_milli));
    if shape.cores > 0 {
        each = format!("{} cores", shape.cores);
    }
    if shape.memory_bytes > 0 {
        each = format!("{each}, {}", mete_model::Bytes(shape.memory_bytes));
    }
    for want in &shape.devices {
        each = format!("{each}, {} {}", want.count, want.class);
    }
    Some(Row::new(
        claim.id.clone(),
        vec![
            claim.id.clone(),
            claim.role.clone(),
            each,
            format!("{}/{}", status.launched, claim.count),
            row.offered.to_string(),
            words::ago(status.submitted_ms),
            row.reason.clone(),
            row.reason_detail.clone(),
        ],
        json!({
            "claim": claim.id,
            "framework": row.framework,
            "framework_id": row.framework_id,
            "role": claim.role,
            "shape": {
                "cpu_milli": shape.cpu_milli,
                "memory_bytes": shape.memory_bytes,
                "disk_bytes": shape.disk_bytes,
                "cores": shape.cores,
                "devices": devices,
            },
            "count": claim.count,
            "launched": status.launched,
            "offered": row.offered,
            "priority": claim.priority,
            "labels": claim.labels,
            "expected_runtime_ms": words::known_number(claim.expected_runtime_ms),
            "submitted": words::time(status.submitted_ms),
            "reason": words::known(&row.reason),
            "reason_detail": words::known(&row.reason_detail),
        }),
    ))
}

async fn set(client: &Client, flags: FrameworkSet) -> Outcome {
    if flags.suppress.is_empty() && flags.revive.is_empty() {
        return Err(CliError::new(Code::Usage, "nothing to change was said")
            .next(
                format!("mete framework set {} --suppress", flags.framework),
                "no more offers",
            )
            .next(
                format!("mete framework set {} --revive", flags.framework),
                "offers again",
            ));
    }
    let (_, framework) = find(client, &flags.framework).await?;
    // A flag without a role means every role of the framework.
    let roles = |said: Vec<String>| {
        if said.iter().any(String::is_empty) {
            framework.roles.clone()
        } else {
            said
        }
    };
    let request = SetFrameworkRequest {
        framework: framework.id.clone(),
        suppress: roles(flags.suppress),
        revive: roles(flags.revive),
        dry_run: client.globals.dry_run,
    };
    let answer = client
        .cluster
        .call(|channel| {
            let request = request.clone();
            async move { admin(channel).set_framework(request).await }
        })
        .await?;
    let would = if client.globals.dry_run {
        "would be "
    } else {
        ""
    };
    let mut said = Vec::new();
    for (word, roles) in [
        ("suppressed", &request.suppress),
        ("revived", &request.revive),
    ] {
        if !roles.is_empty() {
            said.push(format!(
                "{} {would}{word} in {}",
                framework.name,
                roles.join(", ")
            ));
        }
    }
    let item = json!({
        "name": framework.name,
        "suppressed": request.suppress,
        "revived": request.revive,
        "dry_run": request.dry_run,
    });
    print_one(
        &client.style,
        "FrameworkSet",
        Some(answer.revision),
        item,
        &said.join("\n"),
    )
}

async fn remove(client: &Client, name: &str) -> Outcome {
    let (_, framework) = find(client, name).await?;
    let what = format!(
        "framework {} ({}) is torn down: its {} tasks end, its store of {} is dropped",
        framework.name,
        framework.state,
        framework.tasks,
        mete_model::Bytes(framework.store_bytes)
    );
    confirm(client, &[what])?;
    let request = RemoveFrameworkRequest {
        framework: framework.id.clone(),
        dry_run: client.globals.dry_run,
    };
    let answer = client
        .cluster
        .call(|channel| {
            let request = request.clone();
            async move { admin(channel).remove_framework(request).await }
        })
        .await?;
    let killing: Vec<String> = answer
        .killing
        .iter()
        .map(|run| format!("{}#{}", run.task, run.attempt))
        .collect();
    let word = if client.globals.dry_run {
        "would be"
    } else {
        "is"
    };
    let text = format!(
        "framework {} {word} torn down, {} tasks end",
        framework.name,
        killing.len()
    );
    let item = json!({
        "name": framework.name,
        "killing": killing,
        "dry_run": client.globals.dry_run,
    });
    print_one(
        &client.style,
        "FrameworkRemoved",
        Some(answer.revision),
        item,
        &text,
    )
}

#[cfg(test)]
mod tests {
    use mete_proto::types::v1 as types;

    use super::*;
    use crate::cli::support::print::Style;

    #[test]
    fn a_framework_row_says_what_it_holds_and_waits_for() {
        let framework = Framework {
            name: "batch".to_owned(),
            id: "f-1".to_owned(),
            state: "connected".to_owned(),
            roles: vec!["batch".to_owned(), "ml".to_owned()],
            tasks: 3,
            claims: 2,
            waiting: 40,
            granted: Some(types::Resources {
                cpu_milli: 1500,
                ..types::Resources::default()
            }),
            ..Framework::default()
        };
        let object = Object {
            revision: 1,
            object: Some(Content::Framework(framework)),
        };
        let text = listing(1, vec![object])
            .text(&Style::default())
            .expect("a table");
        assert_eq!(
            text,
            "NAME   STATE      ROLES     TASKS  CLAIMS  WAITING  OFFERS  CPU  SINCE\n\
             batch  connected  batch,ml  3      2       40       0       1.5  -\n"
        );
    }

    #[test]
    fn a_claim_row_says_why_it_waits() {
        let claim = types::Claim {
            id: "train".to_owned(),
            role: "ml".to_owned(),
            count: 4,
            shape: Some(types::Shape {
                cpu_milli: 2000,
                ..types::Shape::default()
            }),
            ..types::Claim::default()
        };
        let status = types::ClaimStatus {
            claim: Some(claim),
            launched: 1,
            submitted_ms: 0,
        };
        let row = ClaimRow {
            status: Some(status),
            reason: "NO_CAPACITY".to_owned(),
            ..ClaimRow::default()
        };
        let row = claim_row(&row).expect("a row");
        assert_eq!(row.cells[2..4], ["2 cpu".to_owned(), "1/4".to_owned()]);
        assert_eq!(row.facts["reason"], "NO_CAPACITY");
    }
}
