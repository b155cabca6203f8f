//! Small readers and writers that all stored messages share.

use std::hash::Hash;

use mete_model::{AgentId, ClaimId, Code, FrameworkId, NodeKey, RolePath, RunId, Span, TaskPhase};
use mete_proto::convert::{At, Faults, read_claim_id, read_phase, read_role, read_run};
use mete_proto::internal::v1 as stored;
use mete_proto::types::v1 as wire;
use mete_state::{AgentCondition, Caller, Seat};
use prost::bytes::Bytes;
use uuid::Uuid;

pub(super) fn put_uuid(id: Uuid) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}

fn uuid(bytes: &[u8], at: At<'_>, faults: &mut Faults) -> Option<Uuid> {
    Uuid::from_slice(bytes)
        .map_err(|_| {
            faults.add(
                at,
                format_args!("{} bytes are not an id of 16", bytes.len()),
            )
        })
        .ok()
}

pub(super) fn agent(bytes: &[u8], at: At<'_>, faults: &mut Faults) -> Option<AgentId> {
    uuid(bytes, at, faults).map(AgentId)
}

pub(super) fn framework(bytes: &[u8], at: At<'_>, faults: &mut Faults) -> Option<FrameworkId> {
    uuid(bytes, at, faults).map(FrameworkId)
}

pub(super) fn node_key(bytes: &[u8], at: At<'_>, faults: &mut Faults) -> Option<NodeKey> {
    uuid(bytes, at, faults).map(NodeKey)
}

/// A run that need not be there.
pub(super) fn maybe_run(
    run: Option<wire::Run>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Option<RunId>> {
    match run {
        None => Some(None),
        run @ Some(_) => read_run(run, at, faults).map(Some),
    }
}

/// A message that must be there.
pub(super) fn given<T>(message: Option<T>, at: At<'_>, faults: &mut Faults) -> Option<T> {
    if message.is_none() {
        faults.add(at, "is missing");
    }
    message
}

/// Reads every item; `None` if one of them cannot be read.
pub(super) fn each<T, U>(
    items: Vec<T>,
    at: At<'_>,
    faults: &mut Faults,
    mut read: impl FnMut(T, At<'_>, &mut Faults) -> Option<U>,
) -> Option<Vec<U>> {
    let mut list = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        list.push(read(item, at.index(index), faults)?);
    }
    Some(list)
}

pub(super) fn roles(list: Vec<String>, at: At<'_>, faults: &mut Faults) -> Option<Vec<RolePath>> {
    each(list, at, faults, |role, at, faults| {
        read_role(&role, at, faults)
    })
}

pub(super) fn put_roles(roles: &[RolePath]) -> Vec<String> {
    roles.iter().map(|role| role.as_str().to_owned()).collect()
}

pub(super) fn claims(list: Vec<String>, at: At<'_>, faults: &mut Faults) -> Option<Vec<ClaimId>> {
    each(list, at, faults, |claim, at, faults| {
        read_claim_id(&claim, at, faults)
    })
}

pub(super) fn phase(phase: i32, at: At<'_>, faults: &mut Faults) -> Option<TaskPhase> {
    read_phase(phase, at, faults)
}

/// A reason code that must be known: stored by us, so an unknown one is damage or a newer release.
pub(super) fn code(text: &str, at: At<'_>, faults: &mut Faults) -> Option<Code> {
    text.parse().map_err(|error| faults.add(at, error)).ok()
}

pub(super) fn span(milliseconds: Option<u64>) -> Option<Span> {
    milliseconds.map(Span)
}

pub(super) fn put_span(span: Option<Span>) -> Option<u64> {
    span.map(|span| span.0)
}

pub(super) fn condition(value: i32, at: At<'_>, faults: &mut Faults) -> Option<AgentCondition> {
    use stored::StoredCondition as Stored;
    match Stored::try_from(value).unwrap_or(Stored::Unspecified) {
        Stored::Ready => Some(AgentCondition::Ready),
        Stored::Unreachable => Some(AgentCondition::Unreachable),
        Stored::Gone => Some(AgentCondition::Gone),
        Stored::Unspecified => {
            faults.add(at, format_args!("{value} is not a condition of an agent"));
            None
        }
    }
}

pub(super) fn put_condition(condition: AgentCondition) -> i32 {
    use stored::StoredCondition as Stored;
    let condition = match condition {
        AgentCondition::Ready => Stored::Ready,
        AgentCondition::Unreachable => Stored::Unreachable,
        AgentCondition::Gone => Stored::Gone,
    };
    condition.into()
}

pub(super) fn seat(value: i32, at: At<'_>, faults: &mut Faults) -> Option<Seat> {
    use stored::StoredSeat as Stored;
    match Stored::try_from(value).unwrap_or(Stored::Unspecified) {
        Stored::Learner => Some(Seat::Learner),
        Stored::Voter => Some(Seat::Voter),
        Stored::Leaving => Some(Seat::Leaving),
        Stored::Unspecified => {
            faults.add(at, format_args!("{value} is not a seat of a master"));
            None
        }
    }
}

pub(super) fn put_seat(seat: Seat) -> i32 {
    use stored::StoredSeat as Stored;
    let seat = match seat {
        Seat::Learner => Stored::Learner,
        Seat::Voter => Stored::Voter,
        Seat::Leaving => Stored::Leaving,
    };
    seat.into()
}

pub(super) fn caller(caller: Option<stored::StoredCaller>, faults: &mut Faults) -> Option<Caller> {
    let at = At::root("caller");
    let caller = given(caller, at, faults)?;
    Some(Caller {
        framework: framework(&caller.framework, at.field("framework"), faults)?,
        incarnation: caller.incarnation,
        call: caller.call,
        answered: caller.answered,
    })
}

pub(super) fn put_caller(caller: &Caller) -> Option<stored::StoredCaller> {
    Some(stored::StoredCaller {
        framework: put_uuid(caller.framework.0),
        incarnation: caller.incarnation,
        call: caller.call,
        answered: caller.answered,
    })
}

/// Gives each distinct value a position, in order of first sight.
#[derive(Debug)]
pub(super) struct Positions<K> {
    known: std::collections::HashMap<K, u32>,
}

impl<K: Hash + Eq> Default for Positions<K> {
    fn default() -> Self {
        Self {
            known: std::collections::HashMap::new(),
        }
    }
}

impl<K: Hash + Eq> Positions<K> {
    /// The position of `key`, and whether it is new.
    pub(super) fn of(&mut self, key: K) -> (u32, bool) {
        let next = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        match self.known.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => (*entry.get(), false),
            std::collections::hash_map::Entry::Vacant(entry) => (*entry.insert(next), true),
        }
    }
}

/// The item at a stored position.
pub(super) fn at_position<'a, T>(
    list: &'a [T],
    position: u32,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<&'a T> {
    let item = usize::try_from(position)
        .ok()
        .and_then(|index| list.get(index));
    if item.is_none() {
        faults.add(
            at,
            format_args!(
                "position {position} is not among the {} there are",
                list.len()
            ),
        );
    }
    item
}
