//! Reads SPDX licence expressions: names, `OR`, `AND`, `WITH`, parentheses, and the `/` that
//! old manifests use for `OR`.

use std::collections::BTreeSet;

/// Whether a choice of licences that `expression` permits lies wholly inside `allowed`.
///
/// An expression that cannot be read is not allowed. `X WITH Y` needs an entry of that very
/// form: an exception may widen a licence, but somebody has to have looked.
pub(super) fn allows(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader {
        words: &words,
        allowed,
    };
    let verdict = reader.any_of();
    verdict == Some(true) && reader.words.is_empty()
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a BTreeSet<&'a str>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    fn any_of(&mut self) -> Option<bool> {
        let mut verdict = self.all_of()?;
        while self.take("OR") {
            verdict |= self.all_of()?;
        }
        Some(verdict)
    }

    fn all_of(&mut self) -> Option<bool> {
        let mut verdict = self.one()?;
        while self.take("AND") {
            verdict &= self.one()?;
        }
        Some(verdict)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let verdict = self.any_of()?;
            return self.take(")").then_some(verdict);
        }
        let name = self
            .next()
            .filter(|name| !["OR", "AND", "WITH", ")"].contains(name))?;
        if self.take("WITH") {
            let exception = self.next()?;
            return Some(
                self.allowed
                    .contains(format!("{name} WITH {exception}").as_str()),
            );
        }
        Some(self.allowed.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_needs_one_allowed_licence_and_a_sum_needs_all() {
        let allowed = BTreeSet::from(["MIT", "Apache-2.0", "Unicode-3.0"]);
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-2.0/MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "GPL-3.0 AND BSD-3-Clause OR MIT",
        ] {
            assert!(allows(good, &allowed), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR Apache-2.0) AND OpenSSL",
            "MIT OR",
            "(MIT",
            "MIT Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(!allows(bad, &allowed), "{bad}");
        }
    }
}
