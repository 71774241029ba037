//! Whole runs: the simulator's own promises, known-bad drivers, and scenarios from the field.

mod clients;
mod defects;
mod harm;
mod field;
mod scenarios;
mod seeds;
