//! What comes from outside and is no message: refused with a typed error, whatever it is.

use proptest::prelude::*;

use super::golden::samples;
use super::message::{CELL, Message, every_kind, frame_of, with_frame};
use crate::cursor::Writer;
use crate::frame::{HEAD_BYTES, Head};
use crate::hello::HelloReply;
use crate::limit::*;
use crate::peer::{self, BEATS_PER_FRAME_MAX, Beat, BeatKind, EntryRow, PeerMessage};
use crate::reply::*;
use crate::request::{Acquire, Mode, Mutation, Request, SessionProof, kind};
use crate::*;

/// Decoding must end in a value or an error; a value must have exactly these bytes, or one value would
/// have two encodings.
fn decode_and_compare(kind: u16, body: &[u8]) {
    if let Ok(message) = Message::decode(&frame_of(kind, body)) {
        assert_eq!(&message.encode()[HEAD_BYTES..], body, "{message:?} has another encoding");
        assert!(!format!("{message:?}").is_empty());
    }
}

#[test]
fn kinds_that_nobody_gave_out_are_unknown() {
    let known = every_kind();
    for unknown in (0..=u16::MAX).filter(|kind| !known.contains(kind)) {
        let frame = frame_of(unknown, &[]);
        let error = DecodeError::UnknownKind(unknown);
        assert_eq!(Request::decode(&frame), Err(error));
        assert_eq!(PeerMessage::decode(&frame), Err(error));
        assert_eq!(Event::decode(&frame), Err(error));
        assert_eq!(peer::decode_beats(&frame), Err(error));
        // A refusal may answer a call that only its asker knows; a success may not.
        assert_eq!(Reply::decode(&frame_of(unknown, &[Status::Ok as u8])), Err(error));
    }
}

#[test]
fn no_reader_takes_a_frame_that_belongs_to_another() {
    for (name, message) in samples() {
        with_frame(&message.encode(), |frame| {
            let unknown = DecodeError::UnknownKind(frame.head.kind);
            if !matches!(message, Message::Request(_)) {
                assert_eq!(Request::decode(frame), Err(unknown), "{name}");
            }
            if !matches!(message, Message::Reply(..)) {
                assert_eq!(Reply::decode(frame), Err(unknown), "{name}");
            }
            if !matches!(message, Message::Event(_)) {
                assert_eq!(Event::decode(frame), Err(unknown), "{name}");
            }
            if !matches!(message, Message::Peer(_)) {
                assert_eq!(PeerMessage::decode(frame), Err(unknown), "{name}");
            }
            if !matches!(message, Message::Beats(_)) {
                assert_eq!(peer::decode_beats(frame), Err(unknown), "{name}");
            }
        });
    }
}

#[test]
fn a_status_that_a_call_does_not_have_is_refused() {
    let invalid = Err(DecodeError::Invalid("status"));
    for status in [
        Status::Queued,
        Status::TimedOut,
        Status::AlreadyHeld,
        Status::Lost,
        Status::Cancelled,
        Status::StaleToken,
        Status::Compacted,
        Status::Lagged,
    ] {
        let body = [status as u8; 40];
        assert_eq!(Reply::decode(&frame_of(kind::GET_LOCK | kind::REPLY, &body)), invalid, "{status:?}");
    }
    assert_eq!(Reply::decode(&frame_of(kind::ACQUIRE | kind::REPLY, &[25])), invalid);
}

#[test]
#[should_panic(expected = "OK is not a refusal")]
fn a_success_cannot_be_sent_as_a_refusal() {
    let reply = Reply::Refused(Refusal::new(Status::Ok, ""));
    reply.encode(kind::ACQUIRE, CELL, Correlation(1), &mut Vec::new());
}

#[test]
fn fields_with_values_that_they_cannot_have_are_named() {
    // Each example, the offset of a byte of its body, a value for it, the field that is then wrong.
    for (name, at, value, field) in [
        ("hello.client", 2, 0, "protocol_max"),
        ("hello.client", 20, 3, "role"),
        ("hello-reply.welcome", 0, 25, "status"),
        ("acquire.exclusive", 42, 2, "mode"),
        ("acquire.exclusive", 43, 2, "is_reentrant"),
        ("open-session", 2, 0xff, "client_id"),
        ("get-lock", 2, 0xff, "name"),
        ("acquire-reply.lost", 9, 7, "reason"),
        ("check-token-reply", 1, 2, "is_current"),
        ("event.hold-ended", 0, 4, "event"),
        ("peer.cell-hello.unborn", 24, 2, "has_birth"),
        ("peer.cell-hello.unborn", 25, 1, "birth"),
        ("peer.refused", 0, 0, "reason"),
        ("peer.manifest", 36, 1, "members"),
        ("peer.manifest", 36, 0, "members"),
        ("peer.vote", 0, 3, "ballot"),
        ("peer.append-reply.durable", 8, 2, "outcome"),
        ("peer.beats", 4, 3, "beat"),
        ("peer.beats", 29, 2, "is_short_of_space"),
        ("status-reply", 85, 2, "is_short_of_space"),
        ("status-reply", 86, 2, "is_quiet"),
        ("get-lock-reply.held", 19, 2, "is_quiet"),
        ("save-snapshot-reply.piece", 21, 2, "is_last"),
        ("save-snapshot-reply.piece", 21, 0, "bytes"),
    ] {
        let (_, message) = samples().into_iter().find(|(sample, _)| *sample == name).expect(name);
        with_frame(&message.encode(), |frame| {
            let mut body = frame.body.to_vec();
            body[at] = value;
            let error = Message::decode(&frame_of(frame.head.kind, &body)).expect_err(name);
            assert_eq!(error, DecodeError::Invalid(field), "{name}");
        });
    }
}

/// A body that ends behind a count or a length.
fn claim(prefix: &[u8], count: usize) -> Vec<u8> {
    let mut body = prefix.to_vec();
    body.put_u16(u16::try_from(count).unwrap());
    body
}

#[test]
fn a_list_over_its_limit_is_refused_by_its_count_alone() {
    let reply = |asked: u16| asked | kind::REPLY;
    let ok = &[0u8][..];
    for (name, kind, prefix, limit, field) in [
        ("attach", kind::ATTACH_SESSIONS, &[][..], SESSIONS_PER_BATCH_MAX, "sessions"),
        ("keep-alive", kind::KEEP_ALIVE, &[], SESSIONS_PER_BATCH_MAX, "sessions"),
        ("seen", kind::CANCEL, &[0; 16], REQUEST_WINDOW_MAX, "seen"),
        ("names", kind::ACQUIRE, &[0; 42], NAMES_PER_ACQUIRE_MAX, "names"),
        ("attached", reply(kind::ATTACH_SESSIONS), ok, SESSIONS_PER_BATCH_MAX, "sessions"),
        ("kept", reply(kind::KEEP_ALIVE), ok, SESSIONS_PER_BATCH_MAX, "sessions"),
        ("released", reply(kind::CLOSE_SESSION), &[0; 5], VIEW_ROWS_MAX, "released"),
        ("holders", reply(kind::GET_LOCK), &[0; 28], VIEW_ROWS_MAX, "holders"),
        ("waiters", reply(kind::GET_LOCK), &[0; 30], VIEW_ROWS_MAX, "waiters"),
        ("claims", reply(kind::GET_SESSION), &[0; 19], VIEW_ROWS_MAX, "claims"),
        ("members", reply(kind::STATUS), &[0; 71], MEMBERS_MAX, "members"),
        ("routes", reply(kind::ROUTES), ok, ROUTES_MAX, "routes"),
        ("manifest", peer::kind::MANIFEST, &[0; 16], MEMBERS_MAX, "members"),
        ("beats", peer::kind::BEATS, &[], BEATS_PER_FRAME_MAX, "beats"),
    ] {
        let decode = |count| Message::decode(&frame_of(kind, &claim(prefix, count))).expect_err(name);
        assert_eq!(decode(limit + 1), DecodeError::TooLarge(field), "{name}");
        assert_eq!(decode(usize::from(u16::MAX)), DecodeError::TooLarge(field), "{name}");
        assert!(
            matches!(decode(limit), DecodeError::Truncated(_)),
            "{name} at its limit lacks only its rows"
        );
    }
}

#[test]
fn a_field_over_its_limit_is_refused_by_its_length_alone() {
    let reply = |asked: u16| asked | kind::REPLY;
    for (name, kind, prefix, limit, field) in [
        ("credentials", kind::HELLO, &[0u8; 21][..], CREDENTIALS_BYTES_MAX, "credentials"),
        ("hello detail", reply(kind::HELLO), &[12], DETAIL_BYTES_MAX, "detail"),
        ("client id", kind::OPEN_SESSION, &[], CLIENT_ID_BYTES_MAX, "client_id"),
        ("name", kind::GET_LOCK, &[], NAME_BYTES_MAX, "name"),
        ("data", kind::ACQUIRE, &[0; 44], DATA_BYTES_MAX, "data"),
        ("address", reply(kind::ACQUIRE), &[12, 0, 0, 0, 0, 0, 0], ADDRESS_BYTES_MAX, "leader_address"),
        ("detail", reply(kind::ACQUIRE), &[12, 0, 0, 0, 0, 0, 0, 0, 0], DETAIL_BYTES_MAX, "detail"),
        ("event", kind::EVENT, &[3, 0, 0], ADDRESS_BYTES_MAX, "leader_address"),
    ] {
        let decode = |count| Message::decode(&frame_of(kind, &claim(prefix, count))).expect_err(name);
        assert_eq!(decode(limit + 1), DecodeError::TooLarge(field), "{name}");
        assert_eq!(decode(limit), DecodeError::Truncated(field), "{name} at its limit lacks only its bytes");
    }
    let mut append = vec![0; 32];
    append.put_u16(1);
    append.put_u64(1);
    append.put_u16(u16::try_from(ENTRY_BYTES_MAX + 1).unwrap());
    let error = Message::decode(&frame_of(peer::kind::APPEND, &append));
    assert_eq!(error, Err(DecodeError::TooLarge("entry.payload")));
}

#[test]
fn a_piece_over_its_limit_is_refused_by_its_length_alone() {
    let reply = kind::SAVE_SNAPSHOT | kind::REPLY;
    for (kind, prefix) in [(reply, 1 + 20), (peer::kind::SNAPSHOT_PIECE, 8 + 20)] {
        let decode = |count: usize| {
            let mut body = vec![0; prefix];
            body.put_bool(true);
            body.put_u32(u32::try_from(count).unwrap());
            Message::decode(&frame_of(kind, &body)).expect_err("its bytes are missing")
        };
        assert_eq!(decode(SNAPSHOT_PIECE_BYTES_MAX + 1), DecodeError::TooLarge("bytes"));
        assert_eq!(decode(u32::MAX as usize), DecodeError::TooLarge("bytes"));
        assert_eq!(decode(SNAPSHOT_PIECE_BYTES_MAX), DecodeError::Truncated("bytes"));
    }
}

#[test]
fn words_for_people_are_cut_to_what_the_other_side_reads() {
    let long = "ä".repeat(DETAIL_BYTES_MAX);
    let refusal = Refusal::new(Status::Invalid, &long);
    let mut bytes = Vec::new();
    Reply::Refused(refusal).encode(kind::GET_LOCK, CELL, Correlation(1), &mut bytes);
    with_frame(&bytes, |frame| {
        let detail = &long[..DETAIL_BYTES_MAX];
        assert_eq!(Reply::decode(frame), Ok(Reply::Refused(Refusal { detail, ..refusal })));
    });

    let odd = format!("x{long}");
    let mut body = Vec::new();
    let reply = HelloReply {
        status: Status::Denied,
        detail: &odd,
        protocol: 1,
        node: NodeId(1),
        cluster: ClusterId::default(),
        incarnation: Incarnation::default(),
        ttl_ms_min: 0,
        ttl_ms_max: 0,
        leader: NodeId(0),
        leader_address: "",
    };
    reply.put(&mut body);
    let detail = &odd[..DETAIL_BYTES_MAX - 1];
    assert_eq!(HelloReply::decode(&body), Ok(HelloReply { detail, ..reply }));
}

#[test]
fn more_beats_than_fit_go_into_more_frames() {
    let beat = |round| Beat {
        cell: CellId(1),
        kind: BeatKind::Ask,
        term: Term(1),
        round: RoundId(round),
        committed: LogIndex(0),
        is_short_of_space: false,
    };
    let beats: Vec<Beat> = (0..).map(beat).take(BEATS_PER_FRAME_MAX * 2 + 1).collect();
    let mut bytes = Vec::new();
    peer::encode_beats(&beats, &mut bytes);
    let (mut input, mut assembler, mut seen) = (&bytes[..], frame::Assembler::default(), Vec::new());
    while let Some(frame) = assembler.next(&mut input, PEER_FRAME_BYTES_MAX).unwrap() {
        seen.push(peer::decode_beats(&frame).unwrap().iter().collect::<Vec<_>>());
    }
    assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [BEATS_PER_FRAME_MAX, BEATS_PER_FRAME_MAX, 1]);
    assert_eq!(seen.concat(), beats);

    bytes.clear();
    peer::encode_beats(&[], &mut bytes);
    assert!(bytes.is_empty());
}

#[test]
fn the_largest_messages_fit_the_frames_of_their_connection() {
    let name = format!("/ls/n/{}", "x".repeat(NAME_BYTES_MAX - 6));
    let (client_id, data) = ("c".repeat(CLIENT_ID_BYTES_MAX), vec![7; DATA_BYTES_MAX]);
    let (names, seen) = ([&*name; NAMES_PER_ACQUIRE_MAX], [RequestId(1); REQUEST_WINDOW_MAX]);
    let mutation = Mutation { session: SessionId(1), request_id: RequestId(1), seen: Rows::Slice(&seen) };
    let acquire = Request::Acquire(Acquire {
        mutation,
        owner: Owner(1),
        mode: Mode::Exclusive,
        is_reentrant: false,
        permits: 0,
        wait_ms: 0,
        lock_delay_ms: 0,
        max_hold_ms: 0,
        names: Rows::Slice(&names),
        data: &data,
    });
    let proof = SessionProof { session: SessionId(1), nonce: Nonce::default() };
    let proofs = [proof; SESSIONS_PER_BATCH_MAX];
    let attach = Request::AttachSessions(Rows::Slice(&proofs));
    for (request, limit) in [(acquire, ENTRY_BYTES_MAX), (attach, CLIENT_FRAME_BYTES_MAX)] {
        let bytes = Message::Request(request).encode();
        assert!(bytes.len() <= limit, "{} bytes", bytes.len());
        with_frame(&bytes, |frame| assert_eq!(Request::decode(frame), Ok(request)));
    }

    let holder = HolderView {
        session: SessionId(1),
        owner: Owner(1),
        acquire_id: RequestId(1),
        token: FencingToken(1),
        fence: FencingToken(1),
        client_id: &client_id,
        data: &data,
    };
    let waiter = WaiterView {
        session: SessionId(1),
        owner: Owner(1),
        acquire_id: RequestId(1),
        mode: Mode::Shared,
        position: 1,
        client_id: &client_id,
    };
    let (holders, waiters) = ([holder; VIEW_ROWS_MAX], [waiter; VIEW_ROWS_MAX]);
    let lock = Reply::Lock(LockView {
        revision: Revision(1),
        exists: true,
        mode: Mode::Shared,
        fence_floor: FencingToken(0),
        is_quiet: false,
        holders_total: 1,
        waiters_total: 1,
        holders: Rows::Slice(&holders),
        waiters: Rows::Slice(&waiters),
    });
    let routes = vec![Route { namespace: &name, cell: CellId(1) }; ROUTES_MAX];
    let routes = Reply::Routes(Rows::Slice(&routes));
    for (asked, reply) in [(kind::GET_LOCK, lock), (kind::ROUTES, routes)] {
        let bytes = Message::Reply(asked, reply).encode();
        assert!(bytes.len() <= REPLY_FRAME_BYTES_MAX, "{} bytes", bytes.len());
        with_frame(&bytes, |frame| assert_eq!(Reply::decode(frame), Ok(reply)));
    }
}

#[test]
fn a_full_append_fits_a_peer_frame_in_many_entries_or_few() {
    const ENTRY_HEAD_BYTES: usize = 10;
    for payload_bytes in [0, 100, ENTRY_BYTES_MAX] {
        let payload = vec![1; payload_bytes];
        let count = APPEND_BYTES_MAX / (ENTRY_HEAD_BYTES + payload_bytes);
        assert!(count >= 1);
        let entries = vec![EntryRow { term: Term(1), payload: &payload }; count];
        let message = PeerMessage::Append(peer::Append {
            term: Term(1),
            prev_index: LogIndex(1),
            prev_term: Term(1),
            committed: LogIndex(1),
            entries: Rows::Slice(&entries),
        });
        let bytes = Message::Peer(message).encode();
        assert!(bytes.len() <= PEER_FRAME_BYTES_MAX, "{} bytes", bytes.len());
        with_frame(&bytes, |frame| assert_eq!(PeerMessage::decode(frame), Ok(message)));
    }
}

#[test]
fn one_changed_byte_of_an_example_is_refused_or_is_another_message() {
    for (_, message) in samples() {
        with_frame(&message.encode(), |frame| {
            let mut body = frame.body.to_vec();
            for at in 0..body.len() {
                for value in 0..=u8::MAX {
                    let kept = std::mem::replace(&mut body[at], value);
                    decode_and_compare(frame.head.kind, &body);
                    body[at] = kept;
                }
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_under_any_kind_are_a_message_or_a_refusal(
        kind in prop_oneof![prop::sample::select(every_kind()), any::<u16>()],
        body in prop::collection::vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>()], 0..200),
    ) {
        decode_and_compare(kind, &body);
    }

    #[test]
    fn a_message_with_bytes_changed_is_a_message_or_a_refusal(
        message in super::identity::message(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        with_frame(&message.encode(), |frame| {
            let mut body = frame.body.to_vec();
            if !body.is_empty() {
                for (at, value) in changes {
                    let at = at.index(body.len());
                    body[at] = value;
                }
            }
            decode_and_compare(frame.head.kind, &body);
        });
    }
}

#[test]
fn a_head_with_any_kind_is_carried_as_it_is() {
    for kind in [0, 1, 0x7fff, u16::MAX] {
        let mut bytes = Vec::new();
        let head = Head { kind, cell: CELL, correlation: Correlation(u64::MAX) };
        frame::encode(&mut bytes, head, |_| {});
        with_frame(&bytes, |frame| assert_eq!(frame.head, head));
    }
}
