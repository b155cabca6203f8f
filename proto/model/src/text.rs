//! What a name may look like, and the error that says so.

/// A name that was refused: what it was, and the rule it broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadText {
    /// What kind of name was read, for example "role path".
    pub what: &'static str,
    /// The text that was given, cut to 80 characters.
    pub given: String,
    /// The rule, in words.
    pub rule: &'static str,
}

impl BadText {
    /// Makes the error, cutting `given` so that a hostile input cannot flood a log.
    #[must_use]
    pub fn new(what: &'static str, given: &str, rule: &'static str) -> Self {
        Self {
            what,
            given: given.chars().take(80).collect(),
            rule,
        }
    }
}

impl std::fmt::Display for BadText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} '{}' is not permitted: {}",
            self.what, self.given, self.rule
        )
    }
}

impl std::error::Error for BadText {}

/// Says whether `text` is 1 to `longest` bytes of printable characters without white space.
#[must_use]
pub fn is_printable(text: &str, longest: usize) -> bool {
    !text.is_empty()
        && text.len() <= longest
        && text.chars().all(|c| !c.is_whitespace() && !c.is_control())
}

/// Bytes of a node's name at the most.
pub const LONGEST_NODE_NAME: usize = 253;

/// Checks the name of a node, by the one rule that masters and agents share.
///
/// # Errors
/// The name and the rule that it broke.
pub fn check_node_name(name: &str) -> Result<(), BadText> {
    if is_printable(name, LONGEST_NODE_NAME) {
        return Ok(());
    }
    let rule = "1 to 253 printable bytes without white space";
    Err(BadText::new("node name", name, rule))
}

/// Says whether `text` is 1 to `longest` of letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn is_word(text: &str, longest: usize) -> bool {
    !text.is_empty()
        && text.len() <= longest
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}
