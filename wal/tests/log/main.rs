//! The log against a disk with faults: what users and Raft rely on, from outside.
//!
//! Invariant: every test drives the public interface only. Deliberately absent: real files; those belong to the
//! driver's tests.

mod catch_up;
mod damage;
mod formatting;
mod limits;
mod model;
mod property;
mod restore;
mod retention;
mod rig;
mod rotation;
mod snapshot;
mod snapshot_files;
mod space;
