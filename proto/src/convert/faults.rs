//! Every wrong field of a message at once, each with its path and what is permitted.

use std::fmt;

/// Faults kept of one message; the rest is counted. A hostile message cannot make a flood.
pub const MOST_FAULTS: usize = 256;

/// One wrong field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its path as on the wire, for example `upsert[2].shape.cpu_milli`.
    pub field: String,
    /// What is wrong with it, and what is permitted.
    pub fault: String,
}

/// Everything that is wrong with one message, in the order of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    list: Vec<Fault>,
    more: usize,
}

impl Faults {
    /// Nothing is wrong so far.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a fault of the field at `at`.
    pub fn add(&mut self, at: At<'_>, fault: impl fmt::Display) {
        if self.list.len() < MOST_FAULTS {
            self.list.push(Fault {
                field: at.to_string(),
                fault: fault.to_string(),
            });
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// Says whether nothing is wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The faults, at most [`MOST_FAULTS`].
    #[must_use]
    pub fn list(&self) -> &[Fault] {
        &self.list
    }

    /// How many faults there are beyond the list.
    #[must_use]
    pub fn more(&self) -> usize {
        self.more
    }

    /// `value` if nothing is wrong.
    ///
    /// # Errors
    /// The faults themselves.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Self> {
        match value {
            Some(value) if self.is_empty() => Ok(value),
            Some(_) | None => {
                let mut faults = self;
                // Reading stopped without a word: a defect of a conversion, still never silence.
                if faults.is_empty() {
                    faults.add(At::ROOT, "could not be read");
                }
                Err(faults)
            }
        }
    }
}

impl fmt::Display for Faults {
    /// `upsert[0].role: …; upsert[1].count: …`, and how many more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            if fault.field.is_empty() {
                f.write_str(&fault.fault)?;
            } else {
                write!(f, "{}: {}", fault.field, fault.fault)?;
            }
        }
        if self.more > 0 {
            write!(f, "; and {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Reads a whole message: `read` notes what is wrong and gives the value if it can.
///
/// # Errors
/// All faults that `read` noted.
pub fn whole<T>(read: impl FnOnce(&mut Faults) -> Option<T>) -> Result<T, Faults> {
    let mut faults = Faults::new();
    let value = read(&mut faults);
    faults.finish(value)
}

/// Where a field is. Costs nothing until a fault is written down.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    above: Option<&'a At<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> At<'a> {
    /// The message itself.
    pub const ROOT: At<'static> = At {
        above: None,
        step: Step::Root,
    };

    /// A field of the outermost message.
    #[must_use]
    pub fn root(name: &'a str) -> Self {
        Self {
            above: None,
            step: Step::Field(name),
        }
    }

    /// A field of what is here.
    #[must_use]
    pub fn field(&'a self, name: &'a str) -> Self {
        Self {
            above: Some(self),
            step: Step::Field(name),
        }
    }

    /// An item of the list that is here.
    #[must_use]
    pub fn index(&'a self, index: usize) -> Self {
        Self {
            above: Some(self),
            step: Step::Index(index),
        }
    }

    /// An entry of the map that is here.
    #[must_use]
    pub fn key(&'a self, key: &'a str) -> Self {
        Self {
            above: Some(self),
            step: Step::Key(key),
        }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut inside = false;
        if let Some(above) = self.above {
            above.fmt(f)?;
            inside = !matches!(above.step, Step::Root);
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Field(name) if inside => write!(f, ".{name}"),
            Step::Field(name) => f.write_str(name),
            Step::Index(index) => write!(f, "[{index}]"),
            // A key is the sender's text: cut, so that it cannot flood the answer.
            Step::Key(key) => write!(f, "[{:?}]", key.chars().take(64).collect::<String>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_on_the_wire() {
        let list = At::root("upsert");
        let item = list.index(2);
        let shape = item.field("shape");
        let labels = shape.field("labels");
        assert_eq!(
            shape.field("cpu_milli").to_string(),
            "upsert[2].shape.cpu_milli"
        );
        assert_eq!(
            labels.key("a b").to_string(),
            "upsert[2].shape.labels[\"a b\"]"
        );
        assert_eq!(At::ROOT.field("role").to_string(), "role");
    }

    #[test]
    fn a_flood_of_faults_is_counted_and_not_kept() {
        let mut faults = Faults::new();
        for index in 0..1000 {
            faults.add(At::root("runs").index(index), "is wrong");
        }
        assert_eq!(faults.list().len(), MOST_FAULTS);
        assert_eq!(faults.more(), 1000 - MOST_FAULTS);
        assert!(faults.to_string().ends_with("; and 744 more"));
    }
}
