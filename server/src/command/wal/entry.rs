//! What an entry says, in fields that a line and a JSON object share.
//!
//! Invariant: no secret is shown; the nonce of a session is one. Deliberately absent: what an entry did; that takes the
//! state it met.

use lockstep_wire::entry::{Command, kind};
use lockstep_wire::request::Mutation;
use serde_json::{Map, Value, json};

/// Stands for the kind of an entry that this program cannot read.
pub(super) const UNREADABLE: u16 = u16::MAX;

/// What people call a kind of command.
pub(super) fn name(of: u16) -> &'static str {
    match of {
        kind::BLANK => "blank",
        kind::OPEN_SESSION => "open-session",
        kind::ACQUIRE => "acquire",
        kind::CANCEL => "cancel",
        kind::RELEASE => "release",
        kind::CANCEL_WAIT => "cancel-wait",
        kind::END_SESSIONS => "end-sessions",
        kind::REAP => "reap",
        kind::SESSIONS_SILENT => "sessions-silent",
        kind::SESSIONS_RETURNED => "sessions-returned",
        kind::MEMBERS => "members",
        kind::END_QUIET => "end-quiet",
        _ => "unreadable",
    }
}

/// The fields of a command, but for its name; 64-bit numbers as strings.
pub(super) fn fields(command: &Command<'_>) -> Map<String, Value> {
    let fields = match command {
        Command::Blank | Command::Reap | Command::EndQuiet => json!({}),
        // Not the nonce: whoever has it can act for the session.
        Command::OpenSession { client_id, ttl_ms, nonce: _ } => {
            json!({ "client_id": client_id, "ttl_ms": ttl_ms })
        }
        Command::Acquire(acquire) => with(
            &acquire.mutation,
            json!({
                "owner": acquire.owner.to_string(),
                "mode": acquire.mode.name(),
                "names": acquire.names.iter().collect::<Vec<_>>(),
                "wait_ms": acquire.wait_ms,
                "reentrant": acquire.is_reentrant,
                "permits": acquire.permits,
                "lock_delay_ms": acquire.lock_delay_ms,
                "max_hold_ms": acquire.max_hold_ms,
                "data_bytes": acquire.data.len(),
            }),
        ),
        Command::Cancel { mutation, acquire_id } => {
            with(mutation, json!({ "acquire_id": acquire_id.to_string() }))
        }
        Command::Release { mutation, acquire_id, name, token } => with(
            mutation,
            json!({ "acquire_id": acquire_id.to_string(), "name": name, "token": token.to_string() }),
        ),
        Command::CancelWait { session, acquire_id } => {
            json!({ "session": session.to_string(), "acquire_id": acquire_id.to_string() })
        }
        Command::EndSessions { reason, sessions } => {
            json!({ "reason": reason.name(), "sessions": strings(sessions.iter()) })
        }
        Command::SessionsSilent { silences } => json!({
            "sessions": strings(silences.iter().map(|silence| silence.session)),
            "silent_ms": silences.iter().map(|silence| silence.ms).collect::<Vec<_>>(),
        }),
        Command::SessionsReturned { sessions } => json!({ "sessions": strings(sessions.iter()) }),
        Command::Members(members) => {
            let of = |is_voter: bool| {
                strings(members.members.iter().filter(|it| it.is_voter == is_voter).map(|it| it.node))
            };
            json!({ "voters": of(true), "learners": of(false), "node_max": members.node_max.to_string() })
        }
    };
    match fields {
        Value::Object(fields) => fields,
        other => unreachable!("the fields of a command are an object, not {other}"),
    }
}

fn with(mutation: &Mutation<'_>, mut fields: Value) -> Value {
    fields["session"] = json!(mutation.session.to_string());
    fields["request_id"] = json!(mutation.request_id.to_string());
    fields["seen"] = json!(strings(mutation.seen.iter()));
    fields
}

fn strings(numbers: impl Iterator<Item = impl ToString>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

/// The fields as a line has them: names and values, without those that say nothing.
pub(super) fn line(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        let value = match value {
            Value::Array(values) if values.is_empty() => continue,
            Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
            Value::Bool(false) => continue,
            other if *other == json!(0) => continue,
            other => plain(other),
        };
        text += &format!("  {name} {value}");
    }
    text
}

/// Without the marks of JSON, unless the text holds what would break the line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains(|c: char| c.is_control() || c == ' ') => {
            text.clone()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::request::{Acquire, Mode};
    use lockstep_wire::{Nonce, Owner, RequestId, Rows, SessionId};

    use super::*;

    #[test]
    fn the_nonce_of_a_session_is_never_shown() {
        let command = Command::OpenSession { client_id: "alpha 7", ttl_ms: 9_000, nonce: Nonce([0xab; 16]) };
        let fields = fields(&command);
        assert_eq!(line(&fields), "  client_id \"alpha 7\"  ttl_ms 9000");
        assert_eq!(Value::Object(fields), json!({ "client_id": "alpha 7", "ttl_ms": 9_000 }));
    }

    #[test]
    fn an_acquire_is_a_line_of_what_it_asks() {
        let command = Command::Acquire(Acquire {
            mutation: Mutation {
                session: SessionId(1 << 60),
                request_id: RequestId(2),
                seen: Rows::Slice(&[]),
            },
            owner: Owner(u64::MAX),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 250,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(&["/ls/a/b", "/ls/a/c"]),
            data: b"",
        });
        let wanted = "  mode exclusive  names /ls/a/b,/ls/a/c  owner 18446744073709551615  request_id 2  \
                      session 1152921504606846976  wait_ms 250";
        assert_eq!(line(&fields(&command)), wanted);
        assert_eq!(name(command.kind()), "acquire");
    }

    #[test]
    fn every_kind_that_can_be_read_has_a_name() {
        let named: std::collections::BTreeSet<_> = (0..=0x60).map(name).collect();
        assert_eq!(named.len(), 13, "twelve commands, and all else: {named:?}");
    }
}
