//! mete: the single binary.

fn main() {}
