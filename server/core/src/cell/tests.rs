//! The cell on its own: inputs in, effects out.
