//! The framework's own records in the broker: small, durable, fenced by incarnation.
//!
//! For a framework that needs no disk: rebuild from [`Store::list`] after `connected`, write before
//! acknowledging. Not for secrets, files or results. Keys and values are bytes that nobody reads.

use std::sync::Arc;
use std::time::Duration;

use mete_model::Code;
use mete_proto::framework::v1 as fw;

use crate::calls::ask;
use crate::core::Core;
use crate::error::{Error, KeyConflict, Result};

/// Keys in one read.
const KEYS_AT_ONCE: usize = 8;

/// Records asked for in one page.
const PAGE: u32 = 1_000;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its key, 512 bytes at the most.
    pub key: Vec<u8>,
    /// Its value, 256 KiB at the most; empty when only keys were asked for.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub revision: u64,
}

/// Records put and deleted together: all or nothing.
#[derive(Clone, Debug, Default)]
pub struct Write {
    puts: Vec<fw::StorePut>,
    deletes: Vec<fw::StoreDelete>,
}

impl Write {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a value, whatever was there.
    #[must_use]
    pub fn put(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.puts.push(fw::StorePut {
            key: key.into().into(),
            value: value.into().into(),
            expected: None,
        });
        self
    }

    /// Puts a value if the key is still at `revision`; 0 = it must not exist.
    #[must_use]
    pub fn put_at(
        mut self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        revision: u64,
    ) -> Self {
        self.puts.push(fw::StorePut {
            key: key.into().into(),
            value: value.into().into(),
            expected: Some(revision),
        });
        self
    }

    /// Deletes a key; that it is not there is no error.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.deletes.push(fw::StoreDelete {
            key: key.into().into(),
            expected: None,
        });
        self
    }

    /// Deletes a key if it is still at `revision`.
    #[must_use]
    pub fn delete_at(mut self, key: impl Into<Vec<u8>>, revision: u64) -> Self {
        self.deletes.push(fw::StoreDelete {
            key: key.into().into(),
            expected: Some(revision),
        });
        self
    }

    fn request(self) -> fw::StoreWriteRequest {
        fw::StoreWriteRequest {
            header: None,
            puts: self.puts,
            deletes: self.deletes,
        }
    }

    /// Says whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.deletes.is_empty()
    }

    /// Bytes of all keys and values; one write takes 512 KiB.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let puts = self.puts.iter().map(|put| put.key.len() + put.value.len());
        let deletes = self.deletes.iter().map(|delete| delete.key.len());
        puts.chain(deletes).sum()
    }
}

/// The store of one framework. See the module.
#[derive(Clone, Debug)]
pub struct Store {
    core: Arc<Core>,
}

impl Store {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// One record, if it is there.
    ///
    /// # Errors
    /// [`Error::Invalid`], or why the session is over.
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<Record>> {
        Ok(self.get_all(vec![key.into()]).await?.pop().flatten())
    }

    /// Records in the order of the keys; `None` where there is none.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn get_all(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Record>>> {
        let mut records = Vec::with_capacity(keys.len());
        for part in keys.chunks(KEYS_AT_ONCE) {
            let request = fw::StoreGetRequest {
                header: None,
                keys: part.iter().cloned().map(Into::into).collect(),
            };
            let answer = ask(&self.core, request).await?;
            if answer.items.len() != part.len() {
                return Err(Error::Protocol(format!(
                    "{} keys were read and {} answered",
                    part.len(),
                    answer.items.len()
                )));
            }
            records.extend(answer.items.into_iter().map(|item| {
                let found = item.found;
                found.then(|| record(item))
            }));
        }
        Ok(records)
    }

    /// All records under a prefix, in the order of their keys.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn list(&self, prefix: impl Into<Vec<u8>>) -> Result<Vec<Record>> {
        self.list_pages(prefix.into(), false).await
    }

    /// All keys under a prefix, without their values.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn list_keys(&self, prefix: impl Into<Vec<u8>>) -> Result<Vec<Record>> {
        self.list_pages(prefix.into(), true).await
    }

    async fn list_pages(&self, prefix: Vec<u8>, keys_only: bool) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = fw::StoreListRequest {
                header: None,
                prefix: prefix.clone().into(),
                page_token: page_token.clone(),
                page_size: PAGE,
                keys_only,
            };
            let answer = ask(&self.core, request).await?;
            records.extend(answer.items.into_iter().map(record));
            if answer.next_page_token.is_empty() {
                return Ok(records);
            }
            if answer.next_page_token == page_token {
                let text = "listing the store does not come to an end".to_owned();
                return Err(Error::Protocol(text));
            }
            page_token = answer.next_page_token;
        }
    }

    /// Writes all of it or nothing, and gives the revision that every key put now has. Durable when
    /// it returns; repeated after a lost reply it has no second effect.
    ///
    /// # Errors
    /// [`Error::Conflict`] with every key that has another revision, [`Error::Refused`] with
    /// `STORE_FULL`, [`Error::Invalid`], or why the session is over.
    pub async fn write(&self, write: Write) -> Result<u64> {
        written(ask(&self.core, write.request()).await?)
    }

    /// As [`Store::write`], but waits no longer than said: a master that cannot write at the
    /// moment, because none leads or its disk is full, takes no record for as long as that lasts.
    ///
    /// # Errors
    /// As [`Store::write`], and [`Error::Unavailable`] with what was said last. With `UNKNOWN`
    /// nobody can tell whether it was written, and it may be written later, before every later
    /// write. With any other code nothing was written and nothing will be.
    pub async fn write_within(&self, write: Write, longest: Duration) -> Result<u64> {
        written(crate::calls::ask_within(&self.core, write.request(), longest).await?)
    }
}

fn written(answer: fw::StoreWriteResponse) -> Result<u64> {
    let Err(reason) = crate::wire::verdict_from(answer.verdict) else {
        return Ok(answer.revision);
    };
    if !reason.is(Code::Conflict) {
        return Err(Error::Refused(reason));
    }
    Err(Error::Conflict {
        revision: answer.revision,
        keys: answer
            .conflicts
            .into_iter()
            .map(|item| KeyConflict {
                revision: item.revision,
                key: item.key.into(),
            })
            .collect(),
    })
}

fn record(item: fw::StoreItem) -> Record {
    Record {
        key: item.key.into(),
        value: item.value.into(),
        revision: item.revision,
    }
}
