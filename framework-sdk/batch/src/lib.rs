//! The batch framework: a pure queue in a thin shell.
