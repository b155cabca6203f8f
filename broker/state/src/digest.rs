//! A stable hash of the whole state, to compare replicas at one log index.
//!
//! FNV-1a over every record in snapshot order; numbers go in as little-endian whatever the
//! machine. Derived things are left out: they follow from the records.

use std::hash::{Hash, Hasher};

use crate::state::State;

/// FNV-1a, 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fnv(u64);

impl Fnv {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write(&number.to_le_bytes());
    }

    fn write_u32(&mut self, number: u32) {
        self.write(&number.to_le_bytes());
    }

    fn write_u64(&mut self, number: u64) {
        self.write(&number.to_le_bytes());
    }

    fn write_u128(&mut self, number: u128) {
        self.write(&number.to_le_bytes());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(u64::try_from(number).unwrap_or(u64::MAX));
    }

    fn write_isize(&mut self, number: isize) {
        self.write(&i64::try_from(number).unwrap_or(i64::MAX).to_le_bytes());
    }
}

impl State {
    /// The hash. Equal states have equal ones; it takes a walk over everything.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = Fnv::new();
        self.meta.hash(&mut hash);
        // Of a state from before masters were named this part is empty, and so is its hash: a
        // snapshot of that time keeps its digest.
        if self.meta.last_master > 0 {
            feed(&mut hash, self.masters.values());
        }
        feed(&mut hash, self.roles.values());
        feed(&mut hash, self.agents.values());
        feed(&mut hash, self.frameworks.values());
        feed(&mut hash, self.tombstones.values());
        feed(
            &mut hash,
            self.claims.values().flat_map(|claims| claims.values()),
        );
        feed(&mut hash, self.all_runs());
        feed(&mut hash, self.history.iter());
        feed(&mut hash, self.history.names());
        feed(
            &mut hash,
            self.stores
                .values()
                .flat_map(|store| store.records.values()),
        );
        feed(
            &mut hash,
            self.calls
                .values()
                .flat_map(|calls| calls.verdicts.values()),
        );
        hash.finish()
    }
}

/// Each list with its length behind it, so that no record passes for one of the next list.
fn feed<T: Hash>(hash: &mut Fnv, records: impl Iterator<Item = T>) {
    let mut count: u64 = 0;
    for record in records {
        record.hash(hash);
        count = count.saturating_add(1);
    }
    hash.write_u64(count);
}
