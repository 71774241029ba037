//! What is said, in lines short enough to read.
//!
//! Deliberately absent: anything that decides.

use lockstep_wire::entry::Command;
use lockstep_wire::reply::{Event, Reply};

pub(super) fn command(command: &Command<'_>) -> String {
    match command {
        Command::Blank => "blank".to_owned(),
        Command::OpenSession { client_id, .. } => format!("open {client_id}"),
        Command::Acquire(acquire) => {
            format!("acquire {}/{}", acquire.mutation.session, acquire.mutation.request_id)
        }
        Command::Cancel { mutation, acquire_id } => format!("cancel {}/{acquire_id}", mutation.session),
        Command::Release { mutation, acquire_id, .. } => format!("release {}/{acquire_id}", mutation.session),
        Command::CancelWait { session, acquire_id } => format!("cancel-wait {session}/{acquire_id}"),
        Command::EndSessions { reason, sessions } => {
            format!("end {} {}", reason.name(), sessions.len())
        }
        Command::Reap => "reap".to_owned(),
        Command::SessionsSilent { silences } => format!("silent {}", silences.len()),
        Command::SessionsReturned { sessions } => format!("returned {}", sessions.len()),
        Command::Members(members) => format!("members {}", members.members.len()),
        Command::EndQuiet => "end quiet".to_owned(),
    }
}

pub(super) fn event(event: &Event<'_>) -> String {
    match event {
        Event::HoldEnded { session, acquire_id, reason, .. } => {
            format!("event: hold {session}/{acquire_id} {}", reason.name())
        }
        Event::SessionEnded { session, reason } => format!("event: session {session} {}", reason.name()),
        Event::ShuttingDown { .. } => "event: shutting down".to_owned(),
    }
}

pub(super) fn reply(reply: &Reply<'_>) -> String {
    let status = reply.status().name();
    match reply {
        Reply::Refused(refusal) if refusal.leader.0 != 0 => {
            format!("{status} ask node {} at {}", refusal.leader, refusal.leader_address)
        }
        Reply::Refused(refusal) if refusal.detail.is_empty() => status.to_owned(),
        Reply::Refused(refusal) => format!("{status} ({})", refusal.detail),
        Reply::Opened { session, ttl_ms, next_request_id } => {
            format!("{status} session {session} ttl {ttl_ms} next {next_request_id}")
        }
        Reply::Attached(rows) => {
            let rows = rows.iter().map(|row| match row.ttl_ms {
                0 => format!(" {} {}", row.session, row.status.name()),
                ttl_ms => format!(
                    " {} {} ttl {ttl_ms} next {}",
                    row.session,
                    row.status.name(),
                    row.next_request_id
                ),
            });
            format!("attached:{}", rows.collect::<String>())
        }
        Reply::KeptAlive(rows) => {
            let rows = rows.iter().map(|row| format!(" {} {}", row.session, row.status.name()));
            format!("alive:{}", rows.collect::<String>())
        }
        Reply::Closed { released_total, .. } => format!("{status} released {released_total}"),
        Reply::Granted(grant) => format!("{status} token {} holders {}", grant.token, grant.holders),
        Reply::Queued { position } => format!("{status} {position}"),
        Reply::AlreadyHeld { acquire_id, token } => format!("{status} by {acquire_id} token {token}"),
        Reply::Lost { token, reason } => format!("{status} token {token} {}", reason.name()),
        Reply::TimedOut | Reply::Cancelled | Reply::Done | Reply::StaleToken => status.to_owned(),
        Reply::Checked { is_current, latest_token, fence_floor } => {
            format!("{status} current {is_current} latest {latest_token} floor {fence_floor}")
        }
        Reply::Lock(lock) => {
            let holders: String = lock.holders.iter().map(|row| format!(" {}", row.session)).collect();
            let waiters: String = lock.waiters.iter().map(|row| format!(" {}", row.session)).collect();
            let quiet = if lock.is_quiet { ", quiet" } else { "" };
            format!("{status} held by:{holders}, waiting:{waiters}{quiet}")
        }
        Reply::Session(session) => format!("{status} claims {}", session.claims_total),
        Reply::Status(view) if view.is_quiet => {
            format!("{status} {} sessions {}, quiet for {} ms", view.role, view.sessions, view.quiet_left_ms)
        }
        Reply::Status(view) => format!("{status} {} sessions {}", view.role, view.sessions),
        Reply::Members(view) => format!("{status} members {}", view.members.len()),
        Reply::Transferred { leader, term } => format!("{status} leader {leader} term {term}"),
        Reply::Routes(rows) => format!("{status} routes {}", rows.len()),
        Reply::SavedPiece(piece) => {
            let end = if piece.is_last { " last" } else { "" };
            format!("{status} piece {} of {}{end}", piece.piece, piece.snapshot)
        }
        Reply::SnapshotGone => status.to_owned(),
    }
}
