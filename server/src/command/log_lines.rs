//! Where a server's lines for its operator go: to stderr, by level.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Begins to write lines of `level` and above, unless `LOCKSTEP_LOG` says otherwise.
pub(crate) fn begin(level: &str) {
    let filter = EnvFilter::try_from_env("LOCKSTEP_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
