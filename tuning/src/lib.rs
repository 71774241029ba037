//! What a host must have to run Lockstep, and what of it decides how fast it is.
//!
//! [`examine`] looks and measures; each [`Observation`] says what was seen, why it matters and what to do. Only
//! what a server refuses to start without counts as missing. Deliberately absent: changing anything, and thresholds
//! for what is merely slow; those are for whoever knows what the cell is for.

mod disk;
mod host;

use std::path::Path;

use lockstep_ring::RingConfig;
use lockstep_ring::probe::{self, Finding, Needs};
use serde::Serialize;

/// How an observation is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// As it should be, or a plain fact.
    Fine,
    /// Works, and may be worth a change.
    WorthALook,
    /// A server will not start.
    Missing,
    /// Could not be seen on this host.
    Unknown,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// What it is about.
    pub subject: String,
    /// How to read it.
    pub standing: Standing,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: String,
    /// What to do, where there is something to do.
    pub advice: Option<String>,
}

impl Observation {
    fn new(
        subject: &str,
        standing: Standing,
        seen: impl Into<String>,
        why: &str,
        advice: Option<&str>,
    ) -> Self {
        Self {
            subject: subject.to_owned(),
            standing,
            seen: seen.into(),
            why: why.to_owned(),
            advice: advice.map(str::to_owned),
        }
    }
}

/// The server that is planned, as far as the host must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Shards, each with a ring.
    pub shards: u32,
    /// Client connections at a time.
    pub connections: u64,
}

/// Descriptors besides connections: peers, log files, rings and what the process itself needs.
const OTHER_FILES: u64 = 256;

/// Looks at everything. Writes a small file into the directory for a moment, and removes it.
pub fn examine(directory: &Path, plan: Plan) -> Vec<Observation> {
    let needs = Needs {
        directory: directory.to_owned(),
        rings: plan.shards,
        ring: RingConfig::default(),
        buffer_groups: vec![(1024, 4096), (256, 65_536)],
        open_files: plan.connections + OTHER_FILES,
    };
    let findings = probe::examine(&needs);
    let is_writable =
        findings.iter().all(|finding| finding.subject != probe::Subject::DirectIo || finding.outcome.is_ok());
    let mut observations: Vec<Observation> = findings.iter().map(must_have).collect();
    observations.extend(disk::observe(directory, is_writable));
    observations.extend(host::observe());
    observations
}

/// Whether a server could start.
pub fn is_sufficient(observations: &[Observation]) -> bool {
    observations.iter().all(|observation| observation.standing != Standing::Missing)
}

fn must_have(finding: &Finding) -> Observation {
    let (standing, seen, advice) = match &finding.outcome {
        Ok(seen) => (Standing::Fine, seen.clone(), None),
        Err(shortage) => (Standing::Missing, shortage.to_string(), Some(shortage.remedy())),
    };
    let subject = finding.subject.to_string();
    Observation { subject, standing, seen, why: finding.subject.why().to_owned(), advice }
}
