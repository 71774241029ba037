//! The layouts of replies and events.
//!
//! Invariant: `decode` is the inverse of `encode` for every reply within the limits.

use super::*;

impl Row<'_> for Attached {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session.0);
        out.put_u8(self.status as u8);
        out.put_u32(self.ttl_ms);
        out.put_u64(self.next_request_id.0);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Attached> {
        Ok(Attached {
            session: SessionId(reader.u64("session")?),
            status: Status::from_code(reader.u8("status")?)?,
            ttl_ms: reader.u32("ttl_ms")?,
            next_request_id: RequestId(reader.u64("next_request_id")?),
        })
    }
}

impl Row<'_> for KeptAlive {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session.0);
        out.put_u8(self.status as u8);
        out.put_u32(self.ttl_ms);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<KeptAlive> {
        Ok(KeptAlive {
            session: SessionId(reader.u64("session")?),
            status: Status::from_code(reader.u8("status")?)?,
            ttl_ms: reader.u32("ttl_ms")?,
        })
    }
}

impl<'a> Row<'a> for HolderView<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session.0);
        out.put_u64(self.owner.0);
        out.put_u64(self.acquire_id.0);
        out.put_u64(self.token.0);
        out.put_u64(self.fence.0);
        out.put_bytes(self.client_id.as_bytes());
        out.put_bytes(self.data);
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<HolderView<'a>> {
        Ok(HolderView {
            session: SessionId(reader.u64("session")?),
            owner: Owner(reader.u64("owner")?),
            acquire_id: RequestId(reader.u64("acquire_id")?),
            token: FencingToken(reader.u64("token")?),
            fence: FencingToken(reader.u64("fence")?),
            client_id: reader.text(CLIENT_ID_BYTES_MAX, "client_id")?,
            data: reader.bytes(DATA_BYTES_MAX, "data")?,
        })
    }
}

impl<'a> Row<'a> for WaiterView<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session.0);
        out.put_u64(self.owner.0);
        out.put_u64(self.acquire_id.0);
        out.put_u8(self.mode as u8);
        out.put_u32(self.position);
        out.put_bytes(self.client_id.as_bytes());
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<WaiterView<'a>> {
        Ok(WaiterView {
            session: SessionId(reader.u64("session")?),
            owner: Owner(reader.u64("owner")?),
            acquire_id: RequestId(reader.u64("acquire_id")?),
            mode: Mode::read(reader)?,
            position: reader.u32("position")?,
            client_id: reader.text(CLIENT_ID_BYTES_MAX, "client_id")?,
        })
    }
}

impl<'a> Row<'a> for ClaimView<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.acquire_id.0);
        out.put_u64(self.owner.0);
        out.put_u8(self.mode as u8);
        out.put_u64(self.token.0);
        out.put_u64(self.fence.0);
        out.put_bytes(self.name.as_bytes());
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<ClaimView<'a>> {
        Ok(ClaimView {
            acquire_id: RequestId(reader.u64("acquire_id")?),
            owner: Owner(reader.u64("owner")?),
            mode: Mode::read(reader)?,
            token: FencingToken(reader.u64("token")?),
            fence: FencingToken(reader.u64("fence")?),
            name: reader.text(NAME_BYTES_MAX, "name")?,
        })
    }
}

impl<'a> Row<'a> for MemberView<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node.0);
        out.put_bool(self.is_heard);
        out.put_u64(self.matched.0);
        out.put_bytes(self.address.as_bytes());
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<MemberView<'a>> {
        Ok(MemberView {
            node: NodeId(reader.u16("node")?),
            is_heard: reader.bool("is_heard")?,
            matched: LogIndex(reader.u64("matched")?),
            address: reader.text(ADDRESS_BYTES_MAX, "address")?,
        })
    }
}

impl<'a> Row<'a> for MemberProgress<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        self.member.put(out);
        out.put_bool(self.is_heard);
        out.put_u64(self.matched.0);
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<MemberProgress<'a>> {
        Ok(MemberProgress {
            member: MemberRow::read(reader)?,
            is_heard: reader.bool("is_heard")?,
            matched: LogIndex(reader.u64("matched")?),
        })
    }
}

impl<'a> Row<'a> for Route<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_bytes(self.namespace.as_bytes());
        out.put_u16(self.cell.0);
    }
    fn read(reader: &mut Reader<'a>) -> Decoded<Route<'a>> {
        Ok(Route { namespace: reader.text(NAME_BYTES_MAX, "namespace")?, cell: CellId(reader.u16("cell")?) })
    }
}

impl<'a> Reply<'a> {
    /// The status that the reply starts with.
    pub fn status(&self) -> Status {
        match self {
            Reply::Refused(refusal) => refusal.status,
            Reply::Queued { .. } => Status::Queued,
            Reply::TimedOut => Status::TimedOut,
            Reply::Cancelled => Status::Cancelled,
            Reply::AlreadyHeld { .. } => Status::AlreadyHeld,
            Reply::Lost { .. } => Status::Lost,
            Reply::StaleToken => Status::StaleToken,
            Reply::SnapshotGone => Status::Compacted,
            Reply::Opened { .. }
            | Reply::Attached(_)
            | Reply::KeptAlive(_)
            | Reply::Closed { .. }
            | Reply::Granted(_)
            | Reply::Done
            | Reply::Checked { .. }
            | Reply::Lock(_)
            | Reply::Session(_)
            | Reply::Status(_)
            | Reply::Members(_)
            | Reply::Transferred { .. }
            | Reply::Routes(_)
            | Reply::SavedPiece(_) => Status::Ok,
        }
    }

    /// Appends the whole frame of a reply to a request of kind `asked`.
    ///
    /// # Panics
    /// When a refusal has a status that is not one.
    pub fn encode(&self, asked: u16, cell: CellId, correlation: Correlation, out: &mut Vec<u8>) {
        frame::encode(out, Head { kind: asked | kind::REPLY, cell, correlation }, |out| {
            out.put_u8(self.status() as u8);
            self.put(out);
        });
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Refused(refusal) => refusal.put(out),
            Reply::Opened { session, ttl_ms, next_request_id } => {
                out.put_u64(session.0);
                out.put_u32(*ttl_ms);
                out.put_u64(next_request_id.0);
            }
            Reply::Attached(rows) => rows.put(out),
            Reply::KeptAlive(rows) => rows.put(out),
            Reply::Closed { released_total, released } => {
                out.put_u32(*released_total);
                released.put(out);
            }
            Reply::Granted(grant) => {
                out.put_u64(grant.token.0);
                out.put_u64(grant.fence.0);
                out.put_u16(grant.slot);
                out.put_u32(grant.hold_left_ms);
                out.put_u32(grant.holders);
            }
            Reply::Queued { position } => out.put_u32(*position),
            Reply::AlreadyHeld { acquire_id, token } => {
                out.put_u64(acquire_id.0);
                out.put_u64(token.0);
            }
            Reply::Lost { token, reason } => {
                out.put_u64(token.0);
                out.put_u8(*reason as u8);
            }
            Reply::TimedOut | Reply::Cancelled | Reply::Done | Reply::StaleToken | Reply::SnapshotGone => {}
            Reply::Checked { is_current, latest_token, fence_floor } => {
                out.put_bool(*is_current);
                out.put_u64(latest_token.0);
                out.put_u64(fence_floor.0);
            }
            Reply::Lock(view) => view.put(out),
            Reply::Session(view) => view.put(out),
            Reply::Status(view) => view.put(out),
            Reply::Members(view) => view.put(out),
            Reply::Transferred { leader, term } => {
                out.put_u16(leader.0);
                out.put_u64(term.0);
            }
            Reply::Routes(rows) => rows.put(out),
            Reply::SavedPiece(piece) => piece.put(out),
        }
    }

    /// Reads a reply out of its frame.
    ///
    /// A refusal is read whatever was asked, for a node may refuse a call that this build does not know.
    /// The reply to a Hello has a layout of its own: [`crate::hello::HelloReply`].
    pub fn decode(frame: &Frame<'a>) -> Decoded<Reply<'a>> {
        let asked = frame.head.kind & !kind::REPLY;
        if asked == frame.head.kind || asked == kind::HELLO {
            return Err(DecodeError::UnknownKind(frame.head.kind));
        }
        let mut reader = Reader::new(frame.body);
        let status = Status::from_code(reader.u8("status")?)?;
        let reply = match (status, asked) {
            (Status::Ok, asked) => Reply::read_ok(asked, &mut reader)?,
            (Status::Queued, kind::ACQUIRE) => Reply::Queued { position: reader.u32("position")? },
            (Status::TimedOut, kind::ACQUIRE) => Reply::TimedOut,
            (Status::Cancelled, kind::ACQUIRE) => Reply::Cancelled,
            (Status::AlreadyHeld, kind::ACQUIRE) => Reply::AlreadyHeld {
                acquire_id: RequestId(reader.u64("acquire_id")?),
                token: FencingToken(reader.u64("token")?),
            },
            (Status::Lost, kind::ACQUIRE) => Reply::Lost {
                token: FencingToken(reader.u64("token")?),
                reason: EndReason::read(&mut reader)?,
            },
            (Status::StaleToken, kind::RELEASE) => Reply::StaleToken,
            (Status::Compacted, kind::SAVE_SNAPSHOT) => Reply::SnapshotGone,
            (status, _) if Refusal::is_possible(status) => {
                Reply::Refused(Refusal::read(status, &mut reader)?)
            }
            _ => return Err(DecodeError::Invalid("status")),
        };
        reader.finish()?;
        Ok(reply)
    }

    fn read_ok(asked: u16, reader: &mut Reader<'a>) -> Decoded<Reply<'a>> {
        Ok(match asked {
            kind::OPEN_SESSION => Reply::Opened {
                session: SessionId(reader.u64("session")?),
                ttl_ms: reader.u32("ttl_ms")?,
                next_request_id: RequestId(reader.u64("next_request_id")?),
            },
            kind::ATTACH_SESSIONS => Reply::Attached(Rows::read(reader, SESSIONS_PER_BATCH_MAX, "sessions")?),
            kind::KEEP_ALIVE => Reply::KeptAlive(Rows::read(reader, SESSIONS_PER_BATCH_MAX, "sessions")?),
            kind::CLOSE_SESSION => Reply::Closed {
                released_total: reader.u32("released_total")?,
                released: Rows::read(reader, VIEW_ROWS_MAX, "released")?,
            },
            kind::ACQUIRE => Reply::Granted(Grant {
                token: FencingToken(reader.u64("token")?),
                fence: FencingToken(reader.u64("fence")?),
                slot: reader.u16("slot")?,
                hold_left_ms: reader.u32("hold_left_ms")?,
                holders: reader.u32("holders")?,
            }),
            kind::CANCEL
            | kind::RELEASE
            | kind::ADD_LEARNER
            | kind::PROMOTE
            | kind::REMOVE
            | kind::SET_ADDRESSES => Reply::Done,
            kind::CHECK_TOKEN => Reply::Checked {
                is_current: reader.bool("is_current")?,
                latest_token: FencingToken(reader.u64("latest_token")?),
                fence_floor: FencingToken(reader.u64("fence_floor")?),
            },
            kind::GET_LOCK => Reply::Lock(LockView::read(reader)?),
            kind::GET_SESSION => Reply::Session(SessionView::read(reader)?),
            kind::STATUS => Reply::Status(StatusView::read(reader)?),
            kind::MEMBERS => Reply::Members(MembersView::read(reader)?),
            kind::TRANSFER_LEADER => {
                Reply::Transferred { leader: NodeId(reader.u16("leader")?), term: Term(reader.u64("term")?) }
            }
            kind::ROUTES => Reply::Routes(Rows::read(reader, ROUTES_MAX, "routes")?),
            kind::SAVE_SNAPSHOT => Reply::SavedPiece(SavedPiece::read(reader)?),
            unknown => return Err(DecodeError::UnknownKind(unknown | kind::REPLY)),
        })
    }
}

impl<'a> LockView<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.revision.0);
        out.put_bool(self.exists);
        out.put_u8(self.mode as u8);
        out.put_u64(self.fence_floor.0);
        out.put_bool(self.is_quiet);
        out.put_u32(self.holders_total);
        out.put_u32(self.waiters_total);
        self.holders.put(out);
        self.waiters.put(out);
    }

    fn read(reader: &mut Reader<'a>) -> Decoded<LockView<'a>> {
        Ok(LockView {
            revision: Revision(reader.u64("revision")?),
            exists: reader.bool("exists")?,
            mode: Mode::read(reader)?,
            fence_floor: FencingToken(reader.u64("fence_floor")?),
            is_quiet: reader.bool("is_quiet")?,
            holders_total: reader.u32("holders_total")?,
            waiters_total: reader.u32("waiters_total")?,
            holders: Rows::read(reader, VIEW_ROWS_MAX, "holders")?,
            waiters: Rows::read(reader, VIEW_ROWS_MAX, "waiters")?,
        })
    }
}

impl<'a> SessionView<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.revision.0);
        out.put_u32(self.ttl_ms);
        out.put_bytes(self.client_id.as_bytes());
        out.put_u32(self.claims_total);
        self.claims.put(out);
    }

    fn read(reader: &mut Reader<'a>) -> Decoded<SessionView<'a>> {
        Ok(SessionView {
            revision: Revision(reader.u64("revision")?),
            ttl_ms: reader.u32("ttl_ms")?,
            client_id: reader.text(CLIENT_ID_BYTES_MAX, "client_id")?,
            claims_total: reader.u32("claims_total")?,
            claims: Rows::read(reader, VIEW_ROWS_MAX, "claims")?,
        })
    }
}

/// What a role may be called, in bytes.
const ROLE_BYTES_MAX: usize = 16;

impl<'a> StatusView<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node.0);
        out.put_bytes(self.role.as_bytes());
        out.put_u64(self.term.0);
        out.put_u16(self.leader.0);
        out.put_bytes(self.leader_address.as_bytes());
        out.put_u64(self.committed.0);
        out.put_u64(self.applied.0);
        out.put_u64(self.durable.0);
        out.put_u64(self.sessions);
        out.put_u64(self.locks);
        out.put_u64(self.digest);
        out.put_bool(self.is_short_of_space);
        out.put_bool(self.is_quiet);
        out.put_u32(self.quiet_left_ms);
        self.members.put(out);
    }

    fn read(reader: &mut Reader<'a>) -> Decoded<StatusView<'a>> {
        Ok(StatusView {
            node: NodeId(reader.u16("node")?),
            role: reader.text(ROLE_BYTES_MAX, "role")?,
            term: Term(reader.u64("term")?),
            leader: NodeId(reader.u16("leader")?),
            leader_address: reader.text(ADDRESS_BYTES_MAX, "leader_address")?,
            committed: LogIndex(reader.u64("committed")?),
            applied: LogIndex(reader.u64("applied")?),
            durable: LogIndex(reader.u64("durable")?),
            sessions: reader.u64("sessions")?,
            locks: reader.u64("locks")?,
            digest: reader.u64("digest")?,
            is_short_of_space: reader.bool("is_short_of_space")?,
            is_quiet: reader.bool("is_quiet")?,
            quiet_left_ms: reader.u32("quiet_left_ms")?,
            members: Rows::read(reader, MEMBERS_MAX, "members")?,
        })
    }
}

impl<'a> MembersView<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node.0);
        out.put(&self.incarnation.0);
        out.put_bytes(self.peer_address.as_bytes());
        out.put_bytes(self.client_address.as_bytes());
        out.put_u16(self.cells);
        out.put_u16(self.shards);
        out.put_u16(self.leader.0);
        out.put_bytes(self.leader_address.as_bytes());
        out.put_u64(self.last.0);
        out.put_bool(self.is_changing);
        out.put_u16(self.node_max.0);
        self.members.put(out);
    }

    fn read(reader: &mut Reader<'a>) -> Decoded<MembersView<'a>> {
        Ok(MembersView {
            node: NodeId(reader.u16("node")?),
            incarnation: Incarnation(reader.random("incarnation")?),
            peer_address: reader.text(ADDRESS_BYTES_MAX, "peer_address")?,
            client_address: reader.text(ADDRESS_BYTES_MAX, "client_address")?,
            cells: reader.u16("cells")?,
            shards: reader.u16("shards")?,
            leader: NodeId(reader.u16("leader")?),
            leader_address: reader.text(ADDRESS_BYTES_MAX, "leader_address")?,
            last: LogIndex(reader.u64("last")?),
            is_changing: reader.bool("is_changing")?,
            node_max: NodeId(reader.u16("node_max")?),
            members: Rows::read(reader, MEMBERS_MAX, "members")?,
        })
    }
}

impl<'a> Event<'a> {
    /// Appends the whole frame.
    pub fn encode(&self, cell: CellId, out: &mut Vec<u8>) {
        let head = Head { kind: kind::EVENT, cell, correlation: Correlation(0) };
        frame::encode(out, head, |out| match self {
            Event::HoldEnded { session, acquire_id, token, reason, name } => {
                out.put_u8(1);
                out.put_u64(session.0);
                out.put_u64(acquire_id.0);
                out.put_u64(token.0);
                out.put_u8(*reason as u8);
                out.put_bytes(name.as_bytes());
            }
            Event::SessionEnded { session, reason } => {
                out.put_u8(2);
                out.put_u64(session.0);
                out.put_u8(*reason as u8);
            }
            Event::ShuttingDown { leader, leader_address } => {
                out.put_u8(3);
                out.put_u16(leader.0);
                out.put_bytes(leader_address.as_bytes());
            }
        });
    }

    /// Reads an event out of its frame.
    pub fn decode(frame: &Frame<'a>) -> Decoded<Event<'a>> {
        if frame.head.kind != kind::EVENT {
            return Err(DecodeError::UnknownKind(frame.head.kind));
        }
        let mut reader = Reader::new(frame.body);
        let event = match reader.u8("event")? {
            1 => Event::HoldEnded {
                session: SessionId(reader.u64("session")?),
                acquire_id: RequestId(reader.u64("acquire_id")?),
                token: FencingToken(reader.u64("token")?),
                reason: EndReason::read(&mut reader)?,
                name: reader.text(NAME_BYTES_MAX, "name")?,
            },
            2 => Event::SessionEnded {
                session: SessionId(reader.u64("session")?),
                reason: EndReason::read(&mut reader)?,
            },
            3 => Event::ShuttingDown {
                leader: NodeId(reader.u16("leader")?),
                leader_address: reader.text(ADDRESS_BYTES_MAX, "leader_address")?,
            },
            _ => return Err(DecodeError::Invalid("event")),
        };
        reader.finish()?;
        Ok(event)
    }
}
