//! The table held against docs/SEMANTICS.md: scripts whose output is reviewed, and invariants after random entries, snapshots
//! taken meanwhile among them.

mod invariants;
mod properties;
mod script;
mod scripts;
mod snapshots;
