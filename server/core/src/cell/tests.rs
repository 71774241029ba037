//! The cell on its own: inputs in, effects out, time by hand.
//!
//! The scripts are rewritten (`UPDATE_EXPECT=1`) only by somebody who can say why each line changed.

mod admission;
mod asking;
mod backup;
mod door;
mod expiry;
mod failover;
mod handover;
mod locks;
mod members;
mod restoration;
mod rig;
mod sessions;
mod silence;
mod snapshot;
mod space;
mod text;
mod turns;
