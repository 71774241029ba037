//! The native client: a sans-io session core and its tokio front end.
pub mod core;
#[cfg(test)]
mod fake;
