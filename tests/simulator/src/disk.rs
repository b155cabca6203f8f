//! Stores that break their promises, for the broken variants. Sound worlds use the store as it is:
//! its own fault plan fails single writes and flushes, and a crash decides what of the rest
//! survives.

use std::collections::BTreeMap;

use mete_broker::store::{
    Applied, Entry, Fault, HardState, Loaded, LogStore, Manifest, MemoryStore, Origin,
    SnapshotSource, SnapshotWriter,
};

use crate::variant::Variant;

/// The store of a master under this variant.
pub(crate) fn store(inner: MemoryStore, variant: Option<Variant>) -> Box<dyn LogStore> {
    let variant = variant.filter(|variant| {
        let broken = [
            Variant::SendBeforePersist,
            Variant::HardStateForgotten,
            Variant::MembershipApart,
            Variant::DoubleApply,
            Variant::TrimmedTooFar,
        ];
        broken.contains(variant)
    });
    match variant {
        None => Box::new(inner),
        Some(variant) => Box::new(BrokenStore {
            inner,
            variant,
            late: None,
            terms: BTreeMap::new(),
        }),
    }
}

#[derive(Debug)]
struct BrokenStore {
    inner: MemoryStore,
    variant: Variant,
    /// What was said to be written and is not yet.
    late: Option<(Vec<Entry>, HardState)>,
    /// Terms of the entries that went through here.
    terms: BTreeMap<u64, u64>,
}

impl BrokenStore {
    fn catch_up(&mut self) -> Result<(), Fault> {
        match self.late.take() {
            Some((entries, hard)) => self.inner.append(&entries, &hard),
            None => Ok(()),
        }
    }

    fn hard(&self, hard: &HardState) -> HardState {
        if self.variant == Variant::HardStateForgotten {
            let (term, vote) = (1, 0);
            return HardState {
                term,
                vote,
                ..*hard
            };
        }
        *hard
    }
}

impl LogStore for BrokenStore {
    fn take_loaded(&mut self) -> Option<Loaded> {
        let loaded = self.inner.take_loaded();
        for entry in loaded.iter().flat_map(|loaded| &loaded.entries) {
            self.terms.insert(entry.index, entry.term);
        }
        loaded
    }

    fn append(&mut self, entries: &[Entry], hard: &HardState) -> Result<(), Fault> {
        for entry in entries {
            self.terms.insert(entry.index, entry.term);
        }
        if self.variant == Variant::SendBeforePersist {
            self.catch_up()?;
            self.late = Some((entries.to_vec(), *hard));
            return Ok(());
        }
        let hard = self.hard(hard);
        self.inner.append(entries, &hard)
    }

    fn save_applied(&mut self, hard: &HardState, applied: &Applied) -> Result<(), Fault> {
        self.catch_up()?;
        let mut applied = applied.clone();
        if self.variant == Variant::MembershipApart
            && let Some(term) = self.terms.get(&(applied.index - 1))
        {
            (applied.index, applied.term) = (applied.index - 1, *term);
        }
        let hard = self.hard(hard);
        self.inner.save_applied(&hard, &applied)
    }

    fn trim(&mut self, first_kept: u64) -> Result<(), Fault> {
        self.catch_up()?;
        // The tail that is kept below a snapshot is 20 entries long.
        let beyond = if self.variant == Variant::TrimmedTooFar {
            22
        } else {
            0
        };
        self.inner.trim(first_kept + beyond)
    }

    fn snapshot_writer(
        &self,
        at: &Applied,
        origin: Origin,
    ) -> Result<Box<dyn SnapshotWriter>, Fault> {
        let mut at = at.clone();
        if self.variant == Variant::DoubleApply
            && origin == Origin::Made
            && at.index > 2
            && let Some(term) = self.terms.get(&(at.index - 1))
        {
            (at.index, at.term) = (at.index - 1, *term);
        }
        self.inner.snapshot_writer(&at, origin)
    }

    fn publish_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault> {
        self.catch_up()?;
        self.inner.publish_snapshot(manifest)
    }

    fn install_snapshot(&mut self, manifest: &Manifest, hard: &HardState) -> Result<(), Fault> {
        self.late = None;
        let hard = self.hard(hard);
        self.inner.install_snapshot(manifest, &hard)
    }

    fn discard_snapshot(&mut self, manifest: &Manifest) -> Result<(), Fault> {
        self.inner.discard_snapshot(manifest)
    }

    fn open_snapshot(&self, manifest: &Manifest) -> Result<Box<dyn SnapshotSource>, Fault> {
        self.inner.open_snapshot(manifest)
    }

    fn space_low(&self) -> bool {
        self.inner.space_low()
    }

    fn disk_bytes(&self) -> u64 {
        self.inner.disk_bytes()
    }

    fn tidy(&mut self) -> Result<(), Fault> {
        self.inner.tidy()
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.catch_up()?;
        self.inner.close()
    }
}
