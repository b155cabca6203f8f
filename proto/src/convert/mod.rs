//! Conversions between wire messages and the model.
