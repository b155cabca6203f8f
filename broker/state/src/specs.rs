//! One copy of each distinct task spec, however many launches brought it.
//!
//! Not part of the truth: it changes no answer and no digest, only how much memory runs take.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use mete_model::TaskSpec;

use crate::digest::Fnv;

/// Distinct specs by their hash; a second spec of one hash is simply not shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Specs {
    known: BTreeMap<u64, Arc<TaskSpec>>,
    sweep_at: usize,
}

impl Specs {
    /// The copy that is kept, if there is an equal one; else this one, kept from now on.
    pub(crate) fn share(&mut self, spec: &Arc<TaskSpec>) -> Arc<TaskSpec> {
        let mut hash = Fnv::new();
        spec.hash(&mut hash);
        let kept = self
            .known
            .entry(hash.finish())
            .or_insert_with(|| Arc::clone(spec));
        let shared = if kept == spec {
            Arc::clone(kept)
        } else {
            Arc::clone(spec)
        };
        if self.known.len() > self.sweep_at {
            self.known.retain(|_, kept| Arc::strong_count(kept) > 1);
            self.sweep_at = self.known.len().saturating_mul(2).max(1_024);
        }
        shared
    }
}
