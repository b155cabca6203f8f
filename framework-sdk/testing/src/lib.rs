//! A broker in the test process: virtual time, fault scripts, and the conformance suite.
