//! Sorted pairs of texts in as little memory as they need: most runs have none or one.

use std::collections::BTreeMap;

/// Names and values, sorted by name, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Texts(Box<[(Box<str>, Box<str>)]>);

impl Texts {
    /// The pairs, in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The value of one name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|pair| (*pair.0).cmp(name)).ok()?;
        self.0.get(at).map(|pair| &*pair.1)
    }

    /// Says whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a map, for messages and rows.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

impl From<&BTreeMap<String, String>> for Texts {
    fn from(map: &BTreeMap<String, String>) -> Self {
        Self(
            map.iter()
                .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
                .collect(),
        )
    }
}
