//! Who calls.

use tonic::metadata::MetadataMap;

/// The principal of a caller that proved nothing.
pub const LOCAL: &str = "local";

/// Metadata entry in which a command line names the person behind it, for the audit.
pub const ACTOR: &str = "mete-actor";

/// Longest name of an actor that is kept, in bytes.
const LONGEST_ACTOR: usize = 128;

/// The principal of a call. One for all, until connections are authenticated.
#[must_use]
pub fn principal(_metadata: &MetadataMap) -> String {
    LOCAL.to_owned()
}

/// The person behind an operator's call, as the client names them. Shown in events, never trusted.
#[must_use]
pub fn actor(metadata: &MetadataMap) -> String {
    let named = metadata.get(ACTOR).and_then(|value| value.to_str().ok());
    let named = named.map(str::trim).filter(|name| !name.is_empty());
    let mut actor = named.unwrap_or(LOCAL).to_owned();
    actor.truncate(actor.floor_char_boundary(LONGEST_ACTOR));
    actor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_what_the_client_says_cut_to_size() {
        let mut metadata = MetadataMap::new();
        assert_eq!(actor(&metadata), LOCAL);
        let long = "x".repeat(1000).parse().expect("ascii");
        metadata.insert(ACTOR, long);
        assert_eq!(actor(&metadata).len(), LONGEST_ACTOR);
    }
}
