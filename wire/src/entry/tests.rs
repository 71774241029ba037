//! Payloads survive the log, and nothing else is taken for one.

use proptest::prelude::*;

use super::*;
use crate::limit::MEMBERS_MAX;
use crate::request::Mode;
use crate::{Incarnation, MemberRow, NodeId, Owner};

fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    command.encode(&mut payload);
    payload
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A command that owns what it shows, for generating.
#[derive(Clone, Debug)]
struct Parts {
    pick: u8,
    numbers: [u64; 4],
    short: [u32; 3],
    permits: u16,
    is_shared: bool,
    is_reentrant: bool,
    text: String,
    data: Vec<u8>,
    ids: Vec<u64>,
    nonce: [u8; 16],
}

fn parts() -> impl Strategy<Value = Parts> {
    let fixed = (any::<u8>(), any::<[u64; 4]>(), any::<[u32; 3]>(), any::<u16>(), any::<[u8; 16]>());
    let sized = (
        any::<[bool; 2]>(),
        "[a-zä/]{0,60}",
        prop::collection::vec(any::<u8>(), 0..80),
        prop::collection::vec(any::<u64>(), 0..64),
    );
    (fixed, sized).prop_map(|((pick, numbers, short, permits, nonce), (flags, text, data, ids))| Parts {
        pick,
        numbers,
        short,
        permits,
        is_shared: flags[0],
        is_reentrant: flags[1],
        text,
        data,
        ids,
        nonce,
    })
}

fn with_command(parts: &Parts, check: impl FnOnce(Command<'_>)) {
    let seen: Vec<RequestId> = parts.ids.iter().copied().map(RequestId).collect();
    let sessions: Vec<SessionId> = parts.ids.iter().copied().map(SessionId).collect();
    let silences: Vec<Silence> =
        sessions.iter().map(|session| Silence { session: *session, ms: parts.short[1] }).collect();
    let names = [parts.text.as_str()];
    let [session, request_id, acquire_id, last] = parts.numbers;
    let mutation =
        Mutation { session: SessionId(session), request_id: RequestId(request_id), seen: Rows::Slice(&seen) };
    let acquire_id = RequestId(acquire_id);
    let mut nodes: Vec<u16> =
        parts.ids.iter().map(|id| u16::from(id.to_le_bytes()[0]) + 1).take(MEMBERS_MAX).collect();
    nodes.push(7);
    nodes.sort_unstable();
    nodes.dedup();
    nodes.truncate(MEMBERS_MAX);
    let rows: Vec<MemberRow<'_>> = nodes
        .iter()
        .enumerate()
        .map(|(at, node)| MemberRow {
            node: NodeId(*node),
            incarnation: Incarnation(parts.nonce),
            is_voter: at == 0 || parts.is_shared,
            peer_address: &parts.text,
            client_address: "",
        })
        .collect();
    check(match parts.pick % 12 {
        0 => Command::Blank,
        1 => {
            Command::OpenSession { client_id: &parts.text, ttl_ms: parts.short[0], nonce: Nonce(parts.nonce) }
        }
        2 => Command::Acquire(Acquire {
            mutation,
            owner: Owner(last),
            mode: if parts.is_shared { Mode::Shared } else { Mode::Exclusive },
            is_reentrant: parts.is_reentrant,
            permits: parts.permits,
            wait_ms: parts.short[0],
            lock_delay_ms: parts.short[1],
            max_hold_ms: parts.short[2],
            names: Rows::Slice(&names),
            data: &parts.data,
        }),
        3 => Command::Cancel { mutation, acquire_id },
        4 => Command::Release { mutation, acquire_id, name: &parts.text, token: FencingToken(last) },
        5 => Command::CancelWait { session: SessionId(session), acquire_id },
        6 => Command::EndSessions {
            reason: if parts.is_shared { EndReason::Expired } else { EndReason::Closed },
            sessions: Rows::Slice(&sessions),
        },
        7 => Command::SessionsSilent { silences: Rows::Slice(&silences) },
        8 => Command::SessionsReturned { sessions: Rows::Slice(&sessions) },
        9 => Command::Members(Members {
            node_max: NodeId(*nodes.last().expect("there is one")),
            members: Rows::Slice(&rows),
        }),
        10 => Command::EndQuiet,
        _ => Command::Reap,
    });
}

proptest! {
    #[test]
    fn a_payload_decodes_to_the_command_that_was_encoded(parts in parts()) {
        with_command(&parts, |command| {
            assert_eq!(Command::decode(&encoded(&command)), Ok(command));
        });
    }

    #[test]
    fn every_cut_of_a_payload_is_refused(parts in parts(), cut in any::<prop::sample::Index>()) {
        with_command(&parts, |command| {
            let payload = encoded(&command);
            assert!(Command::decode(&payload[..cut.index(payload.len())]).is_err());
        });
    }

    #[test]
    fn what_is_left_over_is_refused(parts in parts()) {
        with_command(&parts, |command| {
            let mut payload = encoded(&command);
            payload.push(0);
            assert_eq!(Command::decode(&payload), Err(DecodeError::Trailing { bytes: 1 }));
        });
    }

    #[test]
    fn any_bytes_decode_or_are_refused_without_a_panic(
        kind in 0u16..0x50,
        is_framed in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut payload = Vec::new();
        if is_framed {
            payload.put_u16(LEVEL.0);
            payload.put_u16(kind);
        }
        payload.extend_from_slice(&bytes);
        if let Ok(command) = Command::decode(&payload) {
            assert_eq!(encoded(&command), payload);
        }
    }
}

#[test]
fn unknown_levels_kinds_and_reasons_are_refused_by_name() {
    assert_eq!(Command::decode(&[2, 0, 0, 0]), Err(DecodeError::UnknownLevel(2)));
    assert_eq!(Command::decode(&[0, 0, 0, 0]), Err(DecodeError::UnknownLevel(0)));
    assert_eq!(Command::decode(&[1, 0, 0x13, 0]), Err(DecodeError::UnknownKind(0x13)));
    assert_eq!(Command::decode(&[1, 0, 0x21, 0, 0, 0, 0]), Err(DecodeError::Invalid("reason")));
    assert_eq!(Command::decode(&[1]), Err(DecodeError::Truncated("feature_level")));
    assert_eq!(Command::decode(&[1, 0, 0x21, 0, 2, 1, 4]), Err(DecodeError::TooLarge("sessions")));
    assert_eq!(Command::decode(&[1, 0, 0x25, 0, 1, 4]), Err(DecodeError::TooLarge("silences")));
    assert_eq!(Command::decode(&[1, 0, 0x26, 0, 1, 4]), Err(DecodeError::TooLarge("sessions")));
}

#[test]
fn the_bytes_of_level_1_are_pinned() {
    let seen = [RequestId(7), RequestId(8)];
    let mutation = Mutation {
        session: SessionId(0x0001_0000_0000_002a),
        request_id: RequestId(9),
        seen: Rows::Slice(&seen),
    };
    let head = "2a00000000000100" /* session */.to_owned()
        + "0900000000000000" /* request id */
        + "0200" /* seen, counted */
        + "0700000000000000"
        + "0800000000000000";
    let name = "0b00" /* length */
        .to_owned()
        + &hex(b"/ls/demo/ab");
    let acquire_id = RequestId(5);
    let session = SessionId(42);
    let golden = [
        (Command::Blank, "01000000".to_owned()),
        (
            Command::OpenSession { client_id: "me", ttl_ms: 10_000, nonce: Nonce([0xab; 16]) },
            "0100010002006d6510270000".to_owned() + &"ab".repeat(16),
        ),
        (
            Command::Acquire(Acquire {
                mutation,
                owner: Owner(3),
                mode: Mode::Shared,
                is_reentrant: true,
                permits: 0,
                wait_ms: 1000,
                lock_delay_ms: 1,
                max_hold_ms: 2,
                names: Rows::Slice(&["/ls/demo/ab"]),
                data: b"d",
            }),
            "01001000".to_owned()
                + &head
                + "0300000000000000" /* owner */
                + "01" /* mode */
                + "01" /* reentrant */
                + "0000" /* permits */
                + "e8030000" /* wait */
                + "01000000" /* lock delay */
                + "02000000" /* max hold */
                + "0100" /* names, counted */
                + &name
                + "010064", /* data */
        ),
        (Command::Cancel { mutation, acquire_id }, "01001100".to_owned() + &head + "0500000000000000"),
        (
            Command::Release { mutation, acquire_id, name: "/ls/demo/ab", token: FencingToken(0x63) },
            "01001200".to_owned() + &head + "0500000000000000" + &name + "6300000000000000",
        ),
        (Command::CancelWait { session, acquire_id }, "010020002a000000000000000500000000000000".to_owned()),
        (
            Command::EndSessions { reason: EndReason::Expired, sessions: Rows::Slice(&[session]) },
            "010021000201002a00000000000000".to_owned(),
        ),
        (Command::Reap, "01002200".to_owned()),
        (
            Command::SessionsSilent { silences: Rows::Slice(&[Silence { session, ms: 1_000 }]) },
            "0100250001002a00000000000000e8030000".to_owned(),
        ),
        (
            Command::SessionsReturned { sessions: Rows::Slice(&[session]) },
            "0100260001002a00000000000000".to_owned(),
        ),
        (
            Command::Members(Members {
                node_max: NodeId(6),
                members: Rows::Slice(&[MemberRow {
                    node: NodeId(4),
                    incarnation: Incarnation([0xab; 16]),
                    is_voter: true,
                    peer_address: "p",
                    client_address: "",
                }]),
            }),
            "0100410006000100" /* the highest id, members, counted */
                .to_owned()
                + "0400"
                + &"ab".repeat(16)
                + "01" /* voter */
                + "010070" /* address for members */
                + "0000", /* address for clients */
        ),
        (Command::EndQuiet, "01002800".to_owned()),
    ];
    for (command, bytes) in golden {
        assert_eq!(hex(&encoded(&command)), bytes, "{command:?}");
        assert_eq!(Command::decode(&encoded(&command)), Ok(command));
    }
}
