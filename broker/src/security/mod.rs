//! Who calls, and may they.
//!
//! Until transport security exists nobody can prove who they are: listeners accept loopback only
//! (or any address when told so), and every caller is the same principal. Asked by `rpc`, before
//! anything is handed to the loop; it knows nothing of what a call will do.

pub mod identity;
