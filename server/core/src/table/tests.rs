//! The table held against docs/SEMANTICS.md: scripts whose output is reviewed, and invariants after random entries.

mod invariants;
mod properties;
mod script;
mod scripts;
