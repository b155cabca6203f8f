//! `mete quota`: tree, set, rm.

use mete_model::{Bytes, MilliCpu};
use mete_proto::admin::v1::object::Object as Content;
use mete_proto::admin::v1::{Filter, Kind, Object, RemoveRoleRequest, Role, SetRoleRequest};
use serde_json::json;

use super::support::client::{Client, admin};
use super::support::error::Outcome;
use super::support::print::{Listing, Row, print_one};
use super::support::{watch, words};
use crate::args::objects::Quota as Command;

/// Does what was asked.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client, command: Command) -> Outcome {
    match command {
        Command::Tree => watch::show(client, Kind::Role, Filter::default(), tree).await,
        Command::Set { role, weight } => set(client, role, weight).await,
        Command::Rm { role } => remove(client, role).await,
    }
}

/// Roles as a tree by their paths.
pub fn tree(revision: u64, objects: Vec<Object>) -> Listing {
    let mut roles: Vec<Role> = objects
        .into_iter()
        .filter_map(|object| {
            let Content::Role(role) = object.object? else {
                return None;
            };
            Some(role)
        })
        .collect();
    let path = |role: &Role| {
        role.path
            .split('/')
            .map(str::to_owned)
            .collect::<Vec<String>>()
    };
    roles.sort_by_key(path);
    Listing {
        kind: "RoleList",
        revision: Some(revision),
        columns: vec![
            "ROLE",
            "WEIGHT",
            "CPU",
            "MEMORY",
            "DEVICES",
            "WAITING",
            "FRAMEWORKS",
            "OFFERED",
        ],
        narrow: 7,
        rows: roles.iter().map(|role| row(role, &roles)).collect(),
        footer: String::new(),
        warnings: Vec::new(),
    }
}

/// `ml/vision` below `ml` is shown as an indented `vision`; without its parent in whole.
fn shown(role: &Role, all: &[Role]) -> String {
    let known = |path: &str| all.iter().any(|role| role.path == path);
    match role.path.rsplit_once('/') {
        Some((parent, name)) if known(parent) => {
            let depth = role.path.matches('/').count();
            format!("{}{name}", "  ".repeat(depth))
        }
        Some(_) | None => role.path.clone(),
    }
}

/// One role as a row.
pub fn row(role: &Role, all: &[Role]) -> Row {
    let used = role.used.clone().unwrap_or_default();
    Row::new(
        role.path.clone(),
        vec![
            shown(role, all),
            MilliCpu(u64::from(role.weight_milli)).to_string(),
            MilliCpu(used.cpu_milli).to_string(),
            Bytes(used.memory_bytes).to_string(),
            words::devices(&role.used),
            role.waiting.to_string(),
            role.frameworks.join(","),
            words::amounts(&role.offered),
        ],
        json!({
            "path": role.path,
            "weight_milli": role.weight_milli,
            "used": words::resources(&role.used),
            "offered": words::resources(&role.offered),
            "frameworks": role.frameworks,
            "waiting": role.waiting,
        }),
    )
    .amiss(match role.waiting {
        0 => String::new(),
        1 => "has 1 task that waits".to_owned(),
        waiting => format!("has {waiting} tasks that wait"),
    })
}

async fn set(client: &Client, path: String, weight: Option<u32>) -> Outcome {
    let request = SetRoleRequest {
        path,
        weight_milli: weight,
        dry_run: client.globals.dry_run,
    };
    let answer = client
        .cluster
        .call(|channel| {
            let request = request.clone();
            async move { admin(channel).set_role(request).await }
        })
        .await?;
    let verb = match (answer.created, client.globals.dry_run) {
        (true, false) => "made",
        (false, false) => "set",
        (true, true) => "would be made",
        (false, true) => "would be set",
    };
    let weight = weight.map_or_else(String::new, |weight| {
        format!(", weight {}", MilliCpu(u64::from(weight)))
    });
    let text = format!("role {} {verb}{weight}", request.path);
    let item = json!({
        "name": request.path,
        "path": request.path,
        "created": answer.created,
        "weight_milli": request.weight_milli,
        "dry_run": request.dry_run,
    });
    print_one(&client.style, "RoleSet", Some(answer.revision), item, &text)
}

async fn remove(client: &Client, path: String) -> Outcome {
    let request = RemoveRoleRequest {
        path,
        dry_run: client.globals.dry_run,
    };
    let answer = client
        .cluster
        .call(|channel| {
            let request = request.clone();
            async move { admin(channel).remove_role(request).await }
        })
        .await?;
    let word = if client.globals.dry_run {
        "would be removed"
    } else {
        "removed"
    };
    let item = json!({
        "name": request.path,
        "path": request.path,
        "dry_run": request.dry_run,
    });
    let text = format!("role {} {word}", request.path);
    print_one(
        &client.style,
        "RoleRemoved",
        Some(answer.revision),
        item,
        &text,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::print::Style;

    fn role(path: &str) -> Object {
        let role = Role {
            path: path.to_owned(),
            weight_milli: 1500,
            ..Role::default()
        };
        Object {
            revision: 1,
            object: Some(Content::Role(role)),
        }
    }

    #[test]
    fn roles_stand_below_their_parents() {
        let roles = vec![
            role("ml/vision"),
            role("ml-old"),
            role("ml"),
            role("k8s/web"),
        ];
        let text = tree(1, roles).text(&Style::default()).expect("a table");
        assert_eq!(
            text,
            "ROLE      WEIGHT  CPU  MEMORY  DEVICES  WAITING  FRAMEWORKS\n\
             k8s/web   1.5     0    0       -        0        -\n\
             ml        1.5     0    0       -        0        -\n  \
             vision  1.5     0    0       -        0        -\n\
             ml-old    1.5     0    0       -        0        -\n"
        );
    }
}
