//! A cell of real nodes on this machine: `lockstep serve`, each a process of its own.
//!
//! Invariant: ports lie outside of the range from which the kernel takes those of outgoing connections, so that a node
//! that comes back finds its own free. Deliberately absent: what is asked of the nodes.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lockstep_server::format::{Format, format, random_cluster};
use lockstep_wire::NodeId;

use crate::process::Process;
use crate::question::{MemberStatus, status};

/// How long a node may take to stop in order.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Between two looks for a leader.
const LOOK: Duration = Duration::from_millis(50);

/// How a node is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum End {
    /// It is told to stop, and does so in order.
    Term,
    /// Its process dies.
    Kill,
}

/// A node: where its files are and where it serves.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its data directory.
    pub data: PathBuf,
    /// Where it serves clients.
    pub client: SocketAddr,
    peer: SocketAddr,
    config: PathBuf,
    log: PathBuf,
}

/// The nodes of a cell.
#[derive(Debug)]
pub struct Nodes {
    program: PathBuf,
    places: Vec<Place>,
    processes: Vec<Option<Process>>,
}

impl Nodes {
    /// Formats so many nodes in a directory; nothing runs yet. They take the ports from `port` on, two each.
    ///
    /// # Errors
    /// When the program is not there, or a directory cannot be formatted.
    pub fn format(directory: &Path, count: u16, port: u16, segment_bytes: u64) -> anyhow::Result<Nodes> {
        let beside = std::env::current_exe()?;
        let program = beside.with_file_name("lockstep");
        ensure!(
            program.is_file(),
            "{} is not there; build it first: cargo build --release",
            program.display()
        );
        let cluster = random_cluster()?;
        let address = |at: u16| {
            let port = port.checked_add(at).context("so high a port leaves no room for the others")?;
            anyhow::Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        let place = |at: u16| {
            let node = at + 1;
            anyhow::Ok(Place {
                data: directory.join(format!("data-{node}")),
                client: address(2 * at)?,
                peer: address(2 * at + 1)?,
                config: directory.join(format!("node-{node}.toml")),
                log: directory.join(format!("node-{node}.log")),
            })
        };
        let places = (0..count).map(place).collect::<anyhow::Result<Vec<Place>>>()?;
        for (node, place) in (1..).map(NodeId).zip(&places) {
            format(&place.data, &Format { cluster, node, shards: 1, segment_bytes })?;
            std::fs::write(&place.config, config(node, place, &places)?)?;
        }
        let processes = places.iter().map(|_| None).collect();
        Ok(Nodes { program, places, processes })
    }

    /// Every node.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Starts a node that does not run. What it says is added to its log.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn start(&mut self, at: usize) -> anyhow::Result<()> {
        let place = &self.places[at];
        let log = OpenOptions::new().create(true).append(true).open(&place.log)?;
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--config").arg(&place.config);
        command.env_remove("LOCKSTEP_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.processes[at] = Some(Process::start(&mut command)?);
        Ok(())
    }

    /// Ends a node that runs.
    ///
    /// # Errors
    /// When it does not end, or not well when it was told to stop.
    pub fn end(&mut self, at: usize, how: End) -> anyhow::Result<()> {
        let mut process = self.processes[at].take().context("the node runs")?;
        match how {
            End::Kill => process.kill()?,
            End::Term => {
                let status = process.terminate(STOP_MAX)?;
                ensure!(status.success(), "node {} stopped with {status}: {}", at + 1, self.last_words(at));
            }
        }
        Ok(())
    }

    /// The process of a node; none when it does not run.
    pub fn process(&self, at: usize) -> Option<u32> {
        self.processes[at].as_ref().map(Process::id)
    }

    /// Makes sure that no node has ended by itself.
    ///
    /// # Errors
    /// When one has; its last words.
    pub fn check(&mut self) -> anyhow::Result<()> {
        for at in 0..self.processes.len() {
            let ended = self.processes[at].as_mut().map(Process::ended).transpose()?.flatten();
            if let Some(status) = ended {
                bail!("node {} has ended by itself with {status}: {}", at + 1, self.last_words(at));
            }
        }
        Ok(())
    }

    /// How a node is.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&self, at: usize) -> anyhow::Result<MemberStatus> {
        status(self.places[at].client).with_context(|| format!("asking node {}", at + 1))
    }

    /// The node that leads in the newest term, and how it is; none when nobody says so of himself.
    pub fn leader(&self) -> Option<(usize, MemberStatus)> {
        let running = (0..self.places.len()).filter(|at| self.processes[*at].is_some());
        let all = running.filter_map(|at| Some((at, self.status(at).ok()?)));
        all.filter(|(_, status)| status.is_leader).max_by_key(|(_, status)| status.term)
    }

    /// Waits for a leader.
    ///
    /// # Errors
    /// When there is none in time, or a node has ended.
    pub fn await_leader(&mut self, patience: Duration) -> anyhow::Result<(usize, MemberStatus)> {
        let deadline = Instant::now() + patience;
        loop {
            self.check()?;
            if let Some(found) = self.leader() {
                return Ok(found);
            }
            ensure!(Instant::now() < deadline, "no leader after {patience:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// How long a node's log is, in bytes.
    pub fn said_len(&self, at: usize) -> u64 {
        File::open(&self.places[at].log).and_then(|log| log.metadata()).map_or(0, |log| log.len())
    }

    /// The first line with these words in a node's log, from a byte on.
    pub fn line_with(&self, at: usize, from: u64, words: &str) -> Option<String> {
        let log = std::fs::read_to_string(&self.places[at].log).ok()?;
        let said = log.get(usize::try_from(from).ok()?..)?;
        said.lines().find(|line| line.contains(words)).map(str::to_owned)
    }

    fn last_words(&self, at: usize) -> String {
        let log = std::fs::read_to_string(&self.places[at].log).unwrap_or_default();
        log.lines().last().unwrap_or("it said nothing").to_owned()
    }
}

/// The configuration of a node.
fn config(node: NodeId, place: &Place, places: &[Place]) -> anyhow::Result<String> {
    let mut text = format!("data = {:?}\nnode = {node}\n", place.data);
    for (id, Place { client, peer, .. }) in (1..).zip(places) {
        write!(text, "\n[[nodes]]\nid = {id}\nclient = \"{client}\"\npeer = \"{peer}\"\n")?;
    }
    Ok(text)
}
