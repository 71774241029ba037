//! Whole runs: the simulator's own promises, known-bad drivers, and scenarios from the field.

mod clients;
mod field;
mod harm;
mod membership;
mod restoration;
mod scenarios;
mod seeds;
mod snapshots;
mod space;
mod variants;
