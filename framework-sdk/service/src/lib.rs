//! The service framework: keeps N long-running tasks alive.
