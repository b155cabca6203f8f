//! What operators, the command line and the page read: lists, watches, events and reasons.
//!
//! Called by the services in [`crate::rpc`]. Rows are never kept: a page is resolved from the
//! state when it is read, under a lock that is held for one page only (decision 0009). What changed
//! since a revision is known by the [`feed::Feed`], which the loop tells of every applied command;
//! a watch walks along it. What only a leader knows (offers, presence, reasons) is asked of the
//! loop, page by page ([`soft`]). Nothing here can change anything.
//!
//! ```text
//! feed.rs happened.rs     what changed and what happened, newest last, bounded
//! rows.rs soft.rs         one object as a row; what the leader adds to it
//! filter.rs token.rs      which rows are meant; where a page stopped
//! find.rs one.rs views.rs one object by name or prefix, its row; pages
//! cluster.rs              the cluster at a glance, its masters
//! watch.rs                changes after a revision
//! why.rs why/             why something waits
//! ```

pub mod cluster;
pub mod feed;
pub mod filter;
pub mod find;
pub mod happened;
pub mod one;
pub mod problem;
pub mod rows;
pub mod soft;
pub mod token;
pub mod views;
pub mod watch;
pub mod why;

pub use feed::Feed;
pub use problem::Problem;
