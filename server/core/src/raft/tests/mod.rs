//! The Raft node among others like it: scripts to read, and random runs against the oracles.
//!
//! In the scripts a line is `ms  node>node message` or `ms  node  what it writes, learns or reports`;
//! every message takes 0.2 ms and every write 0.1 ms. A script is rewritten (`UPDATE_EXPECT=1`) only by
//! somebody who can say why each line changed.

mod birth;
mod cluster;
mod election;
mod membership;
mod oracle;
mod replication;
mod safety;
mod script;
mod strays;
