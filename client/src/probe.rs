//! What is asked of a member without a session: questions that any of them answers, the one to hand over, and snapshots.
//!
//! Invariant: each is asked of exactly the members named, and no hint is followed; snapshots are the leader's to give, and
//! it is looked for.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockstep_wire::{CellId, NodeId, SnapshotId, Term};

use crate::client::{call_timeout_ms, seed};
use crate::core::{ClientConfig, MemberWish, MembersInfo, Outcome, PieceInfo, RouteInfo, StatusInfo};
use crate::driver::{Answer, Command, Handle, Read, start};
use crate::error::Error;
use crate::session::odd;

/// Asks one member how a cell is, as that member knows it.
pub async fn status_of(endpoint: &str, cell: CellId, timeout: Duration) -> Result<StatusInfo, Error> {
    let what = format!("asking {endpoint} for the status of cell {cell}");
    let config = config(endpoint, cell, timeout)?;
    match ask(config, &what, |answer| Command::Read { read: Read::Status, answer, what: what.clone() })
        .await?
    {
        Outcome::Status(status) => Ok(status),
        other => Err(odd(&what, &other)),
    }
}

/// Asks one member who the members of a cell are, as that member knows it.
pub async fn members_of(endpoint: &str, cell: CellId, timeout: Duration) -> Result<MembersInfo, Error> {
    let what = format!("asking {endpoint} for the members of cell {cell}");
    let config = config(endpoint, cell, timeout)?;
    let command = |answer| Command::Read { read: Read::Members, answer, what: what.clone() };
    match ask(config, &what, command).await? {
        Outcome::Members(members) => Ok(members),
        other => Err(odd(&what, &other)),
    }
}

/// Asks one member, which should lead the cell, to change who the members are. It is asked once; a change that has been made
/// may be asked for again.
pub async fn change_members(
    endpoint: &str,
    cell: CellId,
    wish: MemberWish,
    timeout: Duration,
) -> Result<(), Error> {
    let what = format!("changing the members of cell {cell}");
    let config = config(endpoint, cell, timeout)?;
    let config = ClientConfig { try_timeout_ms: config.call_timeout_ms, ..config };
    match ask(config, &what, |answer| Command::ChangeMembers { wish, answer, what: what.clone() }).await? {
        Outcome::MembersChanged => Ok(()),
        other => Err(odd(&what, &other)),
    }
}

/// Asks the members, all at once, which cell serves which namespace; the first answer counts. They are asked as members of
/// `cell`.
pub async fn routes_of(
    endpoints: Vec<String>,
    cell: CellId,
    timeout: Duration,
) -> Result<Vec<RouteInfo>, Error> {
    first_routes(&endpoints, cell, timeout).await.map(|(_, routes)| routes)
}

/// Likewise, with the place of the endpoint that answered.
pub(crate) async fn first_routes(
    endpoints: &[String],
    cell: CellId,
    timeout: Duration,
) -> Result<(usize, Vec<RouteInfo>), Error> {
    let what = format!("reaching the cluster at {}", endpoints.join(", "));
    if endpoints.is_empty() {
        return Err(Error::Invalid { what, detail: "at least one endpoint is needed".to_owned() });
    }
    let configs = endpoints.iter().map(|endpoint| config(endpoint, cell, timeout));
    let handles = start(configs.collect::<Result<_, _>>()?, &Arc::from([]))?;
    let asked = handles.iter().map(|handle| {
        handle.ask(&what, |answer| Command::Read { read: Read::Routes, answer, what: what.clone() })
    });
    match first_of(asked.map(Box::pin).collect()).await? {
        (at, Outcome::Routes(routes)) => Ok((at, routes)),
        (_, other) => Err(odd(&what, &other)),
    }
}

/// The first of these that succeeds, and which it is; when none does, why the last one failed.
async fn first_of<T, F>(mut asked: Vec<Pin<Box<F>>>) -> Result<(usize, T), Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut is_open = vec![true; asked.len()];
    poll_fn(|cx| {
        for at in 0..asked.len() {
            if !is_open[at] {
                continue;
            }
            match asked[at].as_mut().poll(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(answer)) => return Poll::Ready(Ok((at, answer))),
                Poll::Ready(Err(error)) => {
                    is_open[at] = false;
                    if !is_open.contains(&true) {
                        return Poll::Ready(Err(error));
                    }
                }
            }
        }
        Poll::Pending
    })
    .await
}

/// Asks one member, which should lead the cell, to hand over to `to`, or to the member whose disk has most of the log.
/// Says who leads then. It is asked once: what a refusal means is for whoever asked.
pub async fn transfer_leader(
    endpoint: &str,
    cell: CellId,
    to: Option<NodeId>,
    timeout: Duration,
) -> Result<(NodeId, Term), Error> {
    let what = match to {
        Some(to) => format!("moving the leadership of cell {cell} to node {to}"),
        None => format!("moving the leadership of cell {cell}"),
    };
    let to = to.unwrap_or_default();
    let config = config(endpoint, cell, timeout)?;
    // Its answer takes an election timeout when nothing comes of it, however long that is; it is not asked twice.
    let config = ClientConfig { try_timeout_ms: config.call_timeout_ms, ..config };
    match ask(config, &what, |answer| Command::TransferLeader { to, answer, what: what.clone() }).await? {
        Outcome::Transferred { leader, term } => Ok((leader, term)),
        other => Err(odd(&what, &other)),
    }
}

/// How long a leader may take over a snapshot.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(60);

/// A save of a cell's snapshot under way, for a backup.
#[derive(Debug)]
pub struct SnapshotSave {
    handle: Handle,
    what: String,
}

impl SnapshotSave {
    /// Looks for the leader of a cell, beginning with these members, when the first piece is asked for.
    pub fn connect(endpoints: Vec<String>, cell: CellId) -> Result<SnapshotSave, Error> {
        let what = format!("saving a snapshot of cell {cell}");
        let config = ClientConfig {
            is_pinned: false,
            endpoints,
            first: Some(0),
            try_timeout_ms: call_timeout_ms(SNAPSHOT_TIME_MAX),
            ..config("", cell, SNAPSHOT_TIME_MAX)?
        };
        let mut handles = start(vec![config], &Arc::from([]))?;
        let handle = handles.pop().expect("one configuration has one handle");
        Ok(SnapshotSave { handle, what })
    }

    /// Begins: the first piece of a snapshot that has all that is applied by now. None: begin again.
    pub async fn begin(&self) -> Result<Option<PieceInfo>, Error> {
        self.piece(SnapshotId::default(), 0).await
    }

    /// The next piece of the snapshot that was begun with; the pieces come in their order. None: the snapshot is gone, or
    /// another member leads.
    pub async fn next(&self, snapshot: SnapshotId, piece: u32) -> Result<Option<PieceInfo>, Error> {
        self.piece(snapshot, piece).await
    }

    async fn piece(&self, snapshot: SnapshotId, piece: u32) -> Result<Option<PieceInfo>, Error> {
        let what = self.what.clone();
        let read = Read::Piece { snapshot, piece };
        match self.handle.ask(&self.what, |answer| Command::Read { read, answer, what }).await? {
            Outcome::Piece(found) if found.piece == piece => Ok(Some(found)),
            Outcome::Piece(found) => {
                let trouble = format!("piece {} came where {piece} was asked for", found.piece);
                Err(Error::NoCluster { what: self.what.clone(), trouble })
            }
            Outcome::SnapshotGone => Ok(None),
            other => Err(odd(&self.what, &other)),
        }
    }
}

fn config(endpoint: &str, cell: CellId, timeout: Duration) -> Result<ClientConfig, Error> {
    Ok(ClientConfig {
        is_pinned: true,
        call_timeout_ms: call_timeout_ms(timeout),
        ..ClientConfig::new(cell, vec![endpoint.to_owned()], "probe", seed()?)
    })
}

async fn ask(
    config: ClientConfig,
    what: &str,
    command: impl FnOnce(Answer<Outcome>) -> Command,
) -> Result<Outcome, Error> {
    let handles = start(vec![config], &Arc::from([]))?;
    let handle = &handles[0];
    handle.ask(what, command).await
}
