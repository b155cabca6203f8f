//! Which rows are meant. All that is set must match; a list matches any of its values.

use std::collections::BTreeMap;

use mete_proto::admin::v1::{self as wire, object::Object as Row};
use mete_proto::convert::text::LONGEST_KEY;
use mete_proto::convert::{At, Faults, read_labels};
use mete_state::{Run, State};

use super::rows::framework_name;

/// Values of one list of a filter.
const MOST_STATES: usize = 32;

/// A checked filter.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// As it came, for page tokens.
    pub wire: wire::Filter,
}

/// Whether a row is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is.
    Yes,
    /// Not now; it may have been, or become.
    NotNow,
    /// Never, whatever happens to it.
    Never,
}

impl Filter {
    /// Checks a filter.
    pub fn read(filter: Option<wire::Filter>, faults: &mut Faults) -> Option<Self> {
        let filter = filter.unwrap_or_default();
        let at = At::root("filter");
        let texts = [
            ("name", &filter.name),
            ("role", &filter.role),
            ("framework", &filter.framework),
            ("node", &filter.node),
        ];
        for (name, text) in texts {
            // "framework-id/task#attempt" is the longest name there is.
            if text.len() > 2 * LONGEST_KEY {
                faults.add(
                    at.field(name),
                    format_args!("is longer than {}", 2 * LONGEST_KEY),
                );
            }
        }
        if filter.states.len() > MOST_STATES {
            let fault = format_args!("more than {MOST_STATES} states");
            faults.add(at.field("states"), fault);
        }
        let labels = read_labels(filter.labels.clone(), at.field("labels"), faults)?;
        Some(Self {
            wire: wire::Filter { labels, ..filter },
        })
    }

    /// Says whether nothing is left out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wire == wire::Filter::default()
    }

    /// Says cheaply, before a row is made of it, whether a run cannot be meant.
    #[must_use]
    pub fn rules_out(&self, state: &State, run: &Run) -> bool {
        let filter = &self.wire;
        let name = || framework_name(state, run.framework);
        let framework = &filter.framework;
        if !framework.is_empty() && run.framework.to_string() != *framework && name() != *framework
        {
            return true;
        }
        if !filter.role.is_empty() && !is_within(run.role.as_str(), &filter.role) {
            return true;
        }
        if !filter.states.is_empty() && !filter.states.iter().any(|word| word == run.phase.word()) {
            return true;
        }
        if !filter.name.is_empty() && !filter.name.contains('/') {
            let short = filter.name.split('#').next().unwrap_or_default();
            return !run.id.task.as_str().starts_with(short);
        }
        false
    }

    /// Says whether a row is meant.
    #[must_use]
    pub fn on(&self, object: &wire::Object) -> Match {
        let Some(row) = &object.object else {
            return Match::Never;
        };
        let filter = &self.wire;
        let facets = Facets::of(row);
        let named = filter.name.is_empty()
            || facets
                .names
                .iter()
                .any(|name| name.starts_with(&filter.name));
        let placed = is_one_of(&filter.framework, &facets.framework)
            && is_one_of(&filter.node, &facets.node);
        if !named || !placed {
            return Match::Never;
        }
        let in_role = filter.role.is_empty()
            || facets
                .roles
                .iter()
                .any(|role| is_within(role, &filter.role));
        let in_state =
            filter.states.is_empty() || filter.states.iter().any(|word| word == facets.state);
        let labelled = filter
            .labels
            .iter()
            .all(|(key, value)| facets.labels.and_then(|labels| labels.get(key)) == Some(value));
        if in_role && in_state && labelled {
            Match::Yes
        } else {
            Match::NotNow
        }
    }
}

/// What a filter looks at.
struct Facets<'a> {
    names: Vec<String>,
    framework: Vec<&'a str>,
    node: Vec<&'a str>,
    roles: Vec<&'a str>,
    state: &'static str,
    labels: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Facets<'a> {
    fn of(row: &'a Row) -> Self {
        let none = Self {
            names: Vec::new(),
            framework: Vec::new(),
            node: Vec::new(),
            roles: Vec::new(),
            state: "",
            labels: None,
        };
        match row {
            Row::Node(node) => Self {
                names: vec![node.name.clone(), node.agent_id.clone()],
                node: vec![&node.name, &node.agent_id],
                state: known_word(&node.state),
                labels: Some(&node.labels),
                ..none
            },
            Row::Framework(framework) => Self {
                names: vec![framework.name.clone(), framework.id.clone()],
                framework: vec![&framework.name, &framework.id],
                roles: framework.roles.iter().map(String::as_str).collect(),
                state: known_word(&framework.state),
                labels: Some(&framework.labels),
                ..none
            },
            Row::Role(role) => Self {
                names: vec![role.path.clone()],
                roles: vec![&role.path],
                ..none
            },
            Row::Claim(claim) => Self::of_claim(claim, none),
            Row::Task(task) => Self::of_task(task),
            Row::Offer(offer) => Self {
                names: vec![offer.id.clone()],
                framework: vec![&offer.framework, &offer.framework_id],
                node: vec![&offer.node, &offer.agent_id],
                roles: vec![&offer.role],
                state: known_word(&offer.state),
                ..none
            },
        }
    }

    fn of_claim(row: &'a wire::ClaimRow, none: Self) -> Self {
        let status = row.status.as_ref();
        let Some(claim) = status.and_then(|status| status.claim.as_ref()) else {
            return none;
        };
        let launched = status.map_or(0, |status| status.launched);
        Self {
            names: vec![
                claim.id.clone(),
                format!("{}/{}", row.framework, claim.id),
                format!("{}/{}", row.framework_id, claim.id),
            ],
            framework: vec![&row.framework, &row.framework_id],
            roles: vec![&claim.role],
            state: if claim.count > launched {
                "waiting"
            } else {
                "served"
            },
            labels: Some(&claim.labels),
            ..none
        }
    }

    fn of_task(task: &'a wire::Task) -> Self {
        let run = task.run.clone().unwrap_or_default();
        let id = format!("{}#{}", run.task, run.attempt);
        Self {
            names: vec![
                format!("{}/{id}", task.framework),
                format!("{}/{id}", task.framework_id),
                id,
            ],
            framework: vec![&task.framework, &task.framework_id],
            node: vec![&task.node, &task.agent_id],
            roles: vec![&task.role],
            state: phase_word(task.phase),
            labels: Some(&task.labels),
        }
    }
}

/// The words of states that rows carry as text.
fn known_word(word: &str) -> &'static str {
    const WORDS: [&str; 9] = [
        "ready",
        "recovering",
        "unreachable",
        "gone",
        "connected",
        "disconnected",
        "torn_down",
        "open",
        "accepted",
    ];
    WORDS.into_iter().find(|known| *known == word).unwrap_or("")
}

fn phase_word(phase: i32) -> &'static str {
    mete_model::TaskPhase::ALL
        .into_iter()
        .find(|known| i32::from(mete_proto::convert::write_phase(*known)) == phase)
        .map_or("", mete_model::TaskPhase::word)
}

fn is_one_of(wanted: &str, values: &[&str]) -> bool {
    wanted.is_empty() || values.contains(&wanted)
}

/// A role, or one below it.
fn is_within(role: &str, wanted: &str) -> bool {
    role.strip_prefix(wanted)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use mete_proto::types::v1::TaskPhase;

    use super::*;

    fn task() -> wire::Object {
        wire::Object {
            revision: 1,
            object: Some(Row::Task(wire::Task {
                framework_id: "f-1".to_owned(),
                framework: "batch".to_owned(),
                run: Some(mete_proto::types::v1::Run {
                    task: "train-41".to_owned(),
                    attempt: 2,
                }),
                role: "ml/vision".to_owned(),
                node: "n07".to_owned(),
                phase: TaskPhase::Running.into(),
                labels: BTreeMap::from([("job".to_owned(), "train".to_owned())]),
                ..wire::Task::default()
            })),
        }
    }

    fn on(change: impl FnOnce(&mut wire::Filter)) -> Match {
        let mut filter = wire::Filter::default();
        change(&mut filter);
        Filter { wire: filter }.on(&task())
    }

    #[test]
    fn what_can_change_is_told_from_what_cannot() {
        assert_eq!(on(|_| {}), Match::Yes);
        assert_eq!(
            on(|filter| filter.name = "batch/train".to_owned()),
            Match::Yes
        );
        assert_eq!(on(|filter| filter.name = "rain".to_owned()), Match::Never);
        assert_eq!(on(|filter| filter.role = "ml".to_owned()), Match::Yes);
        assert_eq!(
            on(|filter| filter.role = "ml/vis".to_owned()),
            Match::NotNow
        );
        assert_eq!(on(|filter| filter.node = "n0".to_owned()), Match::Never);
        assert_eq!(on(|filter| filter.framework = "f-1".to_owned()), Match::Yes);
        assert_eq!(
            on(|filter| filter.states = vec!["failed".to_owned()]),
            Match::NotNow
        );
        let states = || vec!["failed".to_owned(), "running".to_owned()];
        assert_eq!(on(|filter| filter.states = states()), Match::Yes);
        let label = |value: &str| BTreeMap::from([("job".to_owned(), value.to_owned())]);
        assert_eq!(on(|filter| filter.labels = label("train")), Match::Yes);
        assert_eq!(on(|filter| filter.labels = label("x")), Match::NotNow);
    }
}
