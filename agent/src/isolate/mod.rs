//! From a grant to the kernel: control groups of either version behind the same verbs.
//!
//! The runtime asks [`Isolation`] for a [`Leaf`] with [`Limits`]; the shim enters it, kills it and
//! reads its counters. Which hierarchy serves which controller is decided for each controller from
//! mountinfo, never from path names, so a hybrid host uses both versions for one task. What the host
//! cannot enforce is said, per kind, in [`Isolation::enforcement`]; nothing is dropped silently.
//!
//! No directory outside `<cgroup root>/mete/<agent>` is ever written, moved or removed (except that a
//! lone agent in a v2 inner node moves itself into a leaf beside its tasks, since an inner node may
//! hold no process). Owners of tasks are not known here.
