//! What programs read, as a JSON Schema: every kind of output and every field of its items.
//!
//! Written down once, in a short form, and published from here (`mete help schema`,
//! `docs/schema/mete.cli.v1.json`). Fields are only ever added. A story of the command line holds
//! the output of every command against it.

use serde_json::{Map, Value, json};

/// Name of the schema, as every envelope carries it.
pub const NAME: &str = "mete.cli/v1";

/// Objects by name. Each field is `name:type`: `text`, `int`, `number`, `bool`, `time` (RFC 3339),
/// `map` (texts by name), `counts` (numbers by name), or another object of this list. A `[]` behind
/// it makes a list, `?` says that it may be null. `@name` takes the fields of another object, and
/// `...` at the end says that there may be more than those that are listed.
const OBJECTS: &[(&str, &str)] = &[
    ("share", "id:text class:text milli:int"),
    (
        "resources",
        "cpu_milli:int memory_bytes:int disk_bytes:int cores:text devices:share[]",
    ),
    ("want", "class:text count:int milli:int"),
    (
        "shape",
        "cpu_milli:int memory_bytes:int disk_bytes:int cores:int devices:want[]",
    ),
    ("device", "id:text class:text healthy:bool attributes:map"),
    ("usage", "cpu_ms:int? memory_peak_bytes:int? wall_ms:int?"),
    (
        "node",
        "name:text agent_id:text state:text state_since:time? total:resources granted:resources \
         offered:resources tasks:int labels:map topology_epoch:int boot_id:text? version:text? \
         node_address:text? fake:bool admitted:time? enforcement:map devices:device[]",
    ),
    ("node_in_full", "@node runs:task[]"),
    ("node_removed", "name:text runs_lost:int dry_run:bool"),
    (
        "framework",
        "name:text id:text principal:text? incarnation:int state:text state_since:time? \
         roles:text[] suppressed_roles:text[] plain_offers:bool failover_timeout_ms:int labels:map \
         service_address:text? tasks:int claims:int waiting:int offers:int store_bytes:int \
         granted:resources demand_version:int",
    ),
    ("framework_in_full", "@framework claim_list:claim[]"),
    (
        "claim",
        "name:text claim:text framework:text framework_id:text role:text shape:shape count:int \
         launched:int offered:int priority:int labels:map expected_runtime_ms:int? submitted:time? \
         reason:text? reason_detail:text?",
    ),
    (
        "framework_set",
        "name:text suppressed:text[] revived:text[] dry_run:bool",
    ),
    ("framework_removed", "name:text killing:text[] dry_run:bool"),
    (
        "task",
        "name:text task:text attempt:int framework:text framework_id:text role:text claim:text? \
         node:text agent_id:text node_address:text? agent_state:text? agent_state_since:time? \
         phase:text reason:text? message:text? exit_code:int? exit_signal:int? \
         resources:resources grant_id:int labels:map command:text[] launched:time? running:time? \
         ended:time? last_sequence:int acknowledged_sequence:int kill_owed:bool usage:usage \
         replace_after_ms:int? keep:text? stop_if_silent_ms:int? replaceable_since:time? \
         replaces:text? replaced_by:text?",
    ),
    (
        "offer",
        "name:text id:text framework:text framework_id:text role:text claim:text? node:text \
         agent_id:text resources:resources slots:int age_ms:int expires_in_ms:int state:text",
    ),
    (
        "role",
        "name:text path:text weight_milli:int used:resources offered:resources frameworks:text[] \
         waiting:int",
    ),
    (
        "role_set",
        "name:text path:text created:bool weight_milli:int? dry_run:bool",
    ),
    ("role_removed", "name:text path:text dry_run:bool"),
    (
        "master",
        "name:text id:int address:text? role:text term:int applied:int lag:int version:text? \
         voter:bool wish:text? replaces:int last_contact_ms:int? receives_snapshot:bool \
         first_index:int last_index:int snapshot_index:int store_bytes:int flushes:int",
    ),
    (
        "status",
        "name:text cluster_id:text version:text masters:int leader_address:text? term:int \
         leader_since:time? nodes:counts total:resources granted:resources offered:resources \
         tasks:counts claims_waiting:int frameworks_connected:int frameworks:int offers_open:int \
         counters:counts warnings:text[]",
    ),
    (
        "top",
        "@status roles:role[] node_list:top_node[] nodes_not_listed:int waiting:waiting[] \
         claims_not_read:bool",
    ),
    ("top_node", "name:text state:text granted_percent:int"),
    (
        "waiting",
        "reason:text claims:int tasks:int example:text detail:text?",
    ),
    ("amount", "kind:text want:int have:int short_by:int"),
    (
        "reason",
        "code:text layer:text detail:text amounts:amount[] since:time?",
    ),
    ("node_group", "code:text detail:text count:int nodes:text[]"),
    ("advice", "who:text text:text command:text?"),
    (
        "why",
        "name:text title:text state:text reasons:reason[] nodes:node_group[] nodes_total:int \
         helps:advice[] decided_ms_ago:int",
    ),
    (
        "event",
        "name:text revision:int number:int at:time? kind:text object:text message:text actor:text? \
         facts:map",
    ),
    (
        "verdict",
        "name:text code:text detail:text? facts:map dry_run:bool",
    ),
    (
        "job",
        "name:text job:text state:text user:text role:text submitted:time? started:time? \
         ended:time? elements:int pending:int running:int completed:int failed:int cancelled:int \
         exit_code:int? exit_signal:int? reason:text? command:text[] array:bool",
    ),
    (
        "element",
        "index:int state:text attempt:int node:text? agent_id:text? node_address:text? \
         exit_code:int? exit_signal:int? reason:text? message:text? started:time? ended:time? \
         task:text? usage:usage details_dropped:bool",
    ),
    (
        "spec",
        "command:text[] environment:map working_directory:text? shape:shape array:text? \
         throttle:int retries:int time_limit_ms:int? priority:int",
    ),
    (
        "job_in_full",
        "@job elements_list:element[] spec:spec waits:text?",
    ),
    (
        "job_end",
        "name:text job:text state:text reason:text? exit_code:int exit_by:text exit_signal:int? \
         elements:int completed:int failed:int cancelled:int",
    ),
    ("submitted", "name:text job:text? elements:int dry_run:bool"),
    (
        "ledger_run",
        "name:text task:text attempt:int framework_id:text phase:text pid:int? \
         resources:resources unconfirmed_statuses:int quarantined:text?",
    ),
    (
        "ledger",
        "name:text agent_id:text total:resources free:resources labels:map topology_epoch:int \
         boot_id:text? version:text? runs:ledger_run[]",
    ),
    ("check", "name:text result:text fact:text fix:text"),
    ("context", "name:text current:bool masters:text[]"),
    ("context_removed", "name:text dry_run:bool"),
    ("value", "name:text value:text origin:text"),
    ("valid", "name:text contexts:int"),
    ("founded", "name:text id:int cluster_id:text"),
    ("master_named", "name:text id:int dry_run:bool"),
    (
        "master_added",
        "name:text id:int address:text cluster_id:text dry_run:bool",
    ),
    ("code", "name:text about:text"),
    ("version", "name:text version:text"),
    (
        "log_line",
        "source:text at:time? stream:text text:text partial:bool",
    ),
    (
        "bench_launches",
        "name:text agents:int tasks:int launches_per_s:number p50_ms:number p99_ms:number \
         demand_to_offer_p99_ms:number offer_to_running_p99_ms:number rss_mib:int flushes:int ...",
    ),
    (
        "bench_allocator",
        "name:text agents:int roles:int frameworks:int full_ms:number incremental_ms:number \
         naive_ms:number ...",
    ),
    (
        "bench_churn",
        "name:text writes:int launches:int payload_mib:int disk_most_first_half_mib:int \
         disk_most_second_half_mib:int rss_most_first_half_mib:int rss_most_second_half_mib:int \
         ...",
    ),
    (
        "bench_commit",
        "name:text clients:int ops_per_s:number p50_ms:number p99_ms:number ...",
    ),
    (
        "bench_failover",
        "name:text rounds:int p50_ms:number p99_ms:number max_ms:number lost_writes:int \
         tasks_touched:int ...",
    ),
    (
        "bench_recover",
        "name:text agents:int tasks:int all_confirmed_s:number first_offer_ms:number \
         tasks_touched:int ...",
    ),
    (
        "bench_node",
        "name:text starts:int at_once:int over_best_ms:number over_p50_ms:number \
         over_p99_ms:number ratio_p50:number ratio_p99:number at_once_ratio:number ...",
    ),
    (
        "bench_snapshot",
        "name:text tasks:int taken_ms:number copy_ms:number copy_over_taken:number \
         longest_command_before_ms:number longest_command_held_ms:number ...",
    ),
    (
        "bench_replay",
        "name:text tasks:int placed:int waiting_with_reason:int waiting_without_reason:int \
         invariant_violations:int cpu_rate:number memory_rate:number gpu_rate:number \
         launches_per_s:number ...",
    ),
    (
        "simulation",
        "name:text seeds:int from:int failed:int seconds:number seeds_per_s:number virtual_s:int \
         happenings:int commands:int terms:int runs:int operations:int ...",
    ),
];

/// Kinds of output in an envelope, and what their items are.
const KINDS: &[(&str, &str)] = &[
    ("AgentCheck", "check"),
    ("BenchAllocator", "bench_allocator"),
    ("BenchChurn", "bench_churn"),
    ("BenchCommit", "bench_commit"),
    ("BenchFailover", "bench_failover"),
    ("BenchLaunches", "bench_launches"),
    ("BenchNode", "bench_node"),
    ("BenchRecover", "bench_recover"),
    ("BenchReplay", "bench_replay"),
    ("BenchSnapshot", "bench_snapshot"),
    ("CancelledJobs", "verdict"),
    ("ClaimList", "claim"),
    ("CodeList", "code"),
    ("ConfigList", "value"),
    ("ConfigValid", "valid"),
    ("Context", "context"),
    ("ContextList", "context"),
    ("ContextRemoved", "context_removed"),
    ("ElementList", "element"),
    ("EventList", "event"),
    ("Framework", "framework_in_full"),
    ("FrameworkList", "framework"),
    ("FrameworkRemoved", "framework_removed"),
    ("FrameworkSet", "framework_set"),
    ("Job", "job_in_full"),
    ("JobEnd", "job_end"),
    ("JobEndList", "job_end"),
    ("JobList", "job"),
    ("KilledTasks", "verdict"),
    ("Ledger", "ledger"),
    ("LedgerRunList", "ledger_run"),
    ("LeadershipTransferred", "master_named"),
    ("MasterAdded", "master_added"),
    ("MasterFounded", "founded"),
    ("MasterList", "master"),
    ("MasterPromoted", "master_named"),
    ("MasterRemoved", "master_named"),
    ("Node", "node_in_full"),
    ("NodeList", "node"),
    ("NodeRemoved", "node_removed"),
    ("Offer", "offer"),
    ("OfferList", "offer"),
    ("RescindedOffers", "verdict"),
    ("RoleList", "role"),
    ("RoleRemoved", "role_removed"),
    ("RoleSet", "role_set"),
    ("Simulation", "simulation"),
    ("Status", "status"),
    ("Submitted", "submitted"),
    ("Task", "task"),
    ("TaskList", "task"),
    ("Top", "top"),
    ("Version", "version"),
    ("Why", "why"),
];

/// What is written without an envelope: each is a line of its own.
const BARE: &[(&str, &str)] = &[
    (
        "DevReady",
        "schema:text kind:text version:text masters:text[] ready_ms:int pid:int",
    ),
    ("Error", "schema:text kind:text error:failure"),
    (
        "failure",
        "code:text message:text facts:text[] next:command[] exit:int",
    ),
    ("command", "command:text what:text"),
    (
        "Progress",
        "schema:text kind:text waits_for:text state:text elapsed_ms:int",
    ),
    ("Removed", "removed:text revision:int"),
];

/// One field of an object.
#[derive(Clone, Copy, Debug)]
struct Field {
    name: &'static str,
    /// Without the marks behind it.
    kind: &'static str,
    list: bool,
    nullable: bool,
}

fn object(name: &str) -> Option<&'static str> {
    let mut all = OBJECTS.iter().chain(BARE);
    all.find(|(known, _)| *known == name)
        .map(|(_, fields)| *fields)
}

/// The fields of an object, those that it takes from others included; and whether it may have more.
fn read(text: &'static str) -> (Vec<Field>, bool) {
    let mut fields = Vec::new();
    let mut open = false;
    for word in text.split_whitespace() {
        if let Some(other) = word.strip_prefix('@') {
            let (taken, more) = read(object(other).unwrap_or_default());
            fields.extend(taken);
            open |= more;
        } else if let Some((name, kind)) = word.split_once(':') {
            let (kind, nullable) = kind.strip_suffix('?').map_or((kind, false), |k| (k, true));
            let (kind, list) = kind.strip_suffix("[]").map_or((kind, false), |k| (k, true));
            fields.push(Field {
                name,
                kind,
                list,
                nullable,
            });
        } else {
            open = true;
        }
    }
    (fields, open)
}

/// The fields of a kind's items.
#[must_use]
pub fn fields(kind: &str) -> Vec<&'static str> {
    let item = KINDS.iter().find(|(known, _)| *known == kind);
    let text = item.and_then(|(_, item)| object(item)).unwrap_or_default();
    read(text).0.iter().map(|field| field.name).collect()
}

/// Every kind of output in an envelope.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(kind, _)| *kind)
}

fn type_of(field: Field) -> Value {
    let plain = |name: &str| {
        if field.nullable {
            json!({ "type": [name, "null"] })
        } else {
            json!({ "type": name })
        }
    };
    if field.list {
        let item = Field {
            list: false,
            nullable: false,
            ..field
        };
        return json!({ "type": "array", "items": type_of(item) });
    }
    match field.kind {
        "text" => plain("string"),
        "int" => plain("integer"),
        "number" => plain("number"),
        "bool" => plain("boolean"),
        "time" => {
            let mut time = plain("string");
            time["format"] = json!("date-time");
            time
        }
        "map" => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        "counts" => json!({ "type": "object", "additionalProperties": { "type": "integer" } }),
        other => json!({ "$ref": format!("#/$defs/{other}") }),
    }
}

fn schema_of(text: &'static str) -> Value {
    let (fields, open) = read(text);
    let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| (field.name.to_owned(), type_of(*field)))
        .collect();
    let mut schema = json!({ "type": "object", "properties": properties, "required": names });
    if open {
        schema["x-more"] = json!(true);
    }
    schema
}

fn envelope(kind: &str, item: &str) -> Value {
    json!({
        "type": "object",
        "properties": {
            "schema": { "const": NAME },
            "kind": { "const": kind },
            "revision": { "type": ["integer", "null"] },
            "items": { "type": "array", "items": { "$ref": format!("#/$defs/{item}") } },
            "warnings": { "type": "array", "items": { "type": "string" } },
        },
        "required": ["schema", "kind", "revision", "items", "warnings"],
    })
}

/// The whole schema, or that of one kind with all it refers to.
///
/// `--fields` leaves fields out; readers of later releases must expect further ones.
#[must_use]
pub fn document() -> String {
    let mut lines = vec![
        "  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\"".to_owned(),
        format!("  \"$id\": \"{NAME}\""),
        "  \"title\": \"What mete prints with -o json; with -o jsonl each line is an item\""
            .to_owned(),
    ];
    let any: Vec<Value> = kinds()
        .chain(["DevReady", "Error", "Progress"])
        .map(|kind| json!({ "$ref": format!("#/$defs/{kind}") }))
        .collect();
    lines.push(format!("  \"oneOf\": {}", json!(any)));
    let objects = OBJECTS
        .iter()
        .chain(BARE)
        .map(|(name, text)| (*name, schema_of(text)));
    let envelopes = KINDS
        .iter()
        .map(|(kind, item)| (*kind, envelope(kind, item)));
    let defs: Vec<String> = objects
        .chain(envelopes)
        .map(|(name, schema)| format!("    \"{name}\": {schema}"))
        .collect();
    lines.push(format!("  \"$defs\": {{\n{}\n  }}", defs.join(",\n")));
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: &str = "docs/schema/mete.cli.v1.json";

    #[test]
    fn the_published_schema_is_this_one() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(PUBLISHED);
        if std::env::var_os("METE_WRITE_SCHEMA").is_some() {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(&path, document()).expect("written");
        }
        let published = std::fs::read_to_string(&path).expect("the published schema");
        assert!(
            published == document(),
            "{PUBLISHED} is stale: METE_WRITE_SCHEMA=1 cargo test -p mete schema"
        );
    }

    #[test]
    fn it_is_json_and_every_reference_leads_somewhere() {
        let schema: Value = serde_json::from_str(&document()).expect("JSON");
        let defs = schema["$defs"].as_object().expect("definitions");
        let text = document();
        for reference in text.split("\"$ref\":\"#/$defs/").skip(1) {
            let name = reference.split('"').next().expect("a name");
            assert!(defs.contains_key(name), "{name} is referred to and missing");
        }
        assert_eq!(defs.len(), OBJECTS.len() + BARE.len() + KINDS.len());
    }

    #[test]
    fn every_item_of_an_envelope_has_a_name_but_elements() {
        for kind in kinds().filter(|kind| *kind != "ElementList") {
            assert!(fields(kind).contains(&"name"), "{kind}");
        }
    }
}
