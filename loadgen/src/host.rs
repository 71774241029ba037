//! What the load generator needs of the machine it runs on.
//!
//! Invariant: what is missing is said in one sentence, with the value that would do, before anything is started.

use anyhow::{Context, bail};
use glommio::{LocalExecutorBuilder, Placement};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What an executor keeps for files, of which a load generator reads none, in bytes; glommio's least.
pub(crate) const IO_MEMORY_BYTES: usize = 64 * 1024;
/// Requests that an executor hands to the kernel at once.
pub(crate) const RING_DEPTH: usize = 512;
/// Files that an executor opens, its rings and doorbells, with a margin.
const FILES_PER_EXECUTOR: u64 = 32;
/// Files that the process has open anyway, with a margin.
const FILES_OF_PROCESS: u64 = 32;

/// Makes sure that so many executors can be started and carry so many connections.
pub(crate) fn prepare(executors: u64, connections: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if let Some(wanted) = missing_files(executors, connections, limit.current) {
        if limit.maximum.is_some_and(|maximum| maximum < wanted) {
            bail!(
                "{connections} connections need {wanted} open files, and this process may have {}: raise the limit \
                 (`ulimit -Hn {wanted}`), or let more sessions share a connection",
                limit.maximum.unwrap_or(u64::MAX)
            );
        }
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised)
            .with_context(|| format!("raising the limit of open files to {wanted}"))?;
    }
    // One that is made and dropped, because a failure inside a thread would be seen only once the others have begun.
    let probe = LocalExecutorBuilder::new(Placement::Unbound);
    if let Err(error) = probe.io_memory(IO_MEMORY_BYTES).ring_depth(RING_DEPTH).make() {
        bail!(no_executor(&error.to_string(), getrlimit(Resource::Memlock).current));
    }
    Ok(())
}

/// The limit of open files that is needed, if the one that is there is too low.
fn missing_files(executors: u64, connections: u64, limit: Option<u64>) -> Option<u64> {
    let wanted = FILES_OF_PROCESS + executors * FILES_PER_EXECUTOR + connections;
    limit.filter(|limit| *limit < wanted).map(|_| wanted)
}

/// Why no executor starts, and what to do.
pub(crate) fn no_executor(error: &str, memlock_bytes: Option<u64>) -> String {
    let memlock = memlock_bytes.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    format!(
        "no executor can be started here: each needs io_uring (Linux 5.8 or later, not forbidden by the sysctl \
         kernel.io_uring_disabled or by a container's seccomp profile) and at least 512 KiB of locked memory \
         (`ulimit -l`, now {memlock}); what failed was: {error}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_open_files_that_is_too_low_is_found_before_the_start() {
        assert_eq!(missing_files(2, 1_000, Some(1_096)), None);
        assert_eq!(missing_files(2, 1_001, Some(1_096)), Some(1_097));
        assert_eq!(missing_files(2, 1_000_000, None), None, "without a limit there is always room");
    }

    #[test]
    fn a_failing_start_names_the_limit_and_the_needed_value() {
        let sentence = no_executor("too low", Some(64 * 1024));
        assert!(sentence.contains("512 KiB") && sentence.contains("now 64 KiB"), "{sentence}");
    }
}
