//! Write a framework: connect, declare demand, take offers, launch, hear what happened.
