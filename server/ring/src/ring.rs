//! The ring: set-up, the one system call of a turn, completions, and the end.
//!
//! Invariant: whatever the kernel may still touch is owned here until the completion that gives it up has been taken,
//! however the caller behaves. Dropping the ring cancels everything and waits; what does not come back in time is leaked.
//! A ring stays on the thread that made it (SINGLE_ISSUER), which its type enforces.
//! Deliberately absent: retries of whole operations, protocol, time other than waits.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use crate::aligned::Pinned;
use crate::completion::Token;
use crate::descriptor::{Descriptors, File, Key, Socket};
use crate::doorbell::{Doorbell, DoorbellId, Waker};
use crate::group::BufferGroup;
use crate::op::{Op, OpId, Ops};
use crate::vectored::Vectored;

/// The kind of a completion, in the two topmost bits of its number.
pub(crate) const KIND_MASK: u64 = 0b11 << 62;
pub(crate) const KIND_OP: u64 = 0b00 << 62;
pub(crate) const KIND_RANG: u64 = 0b01 << 62;
pub(crate) const KIND_RING_FAILED: u64 = 0b10 << 62;
pub(crate) const KIND_IGNORED: u64 = 0b11 << 62;

/// How long the drop of a ring waits for its operations.
const DROP_WAIT: Duration = Duration::from_secs(2);
/// How often a ring is tried for while there is no memory, and the pause between.
const SETUP_ATTEMPTS_MAX: u32 = 10;
const SETUP_PAUSE: Duration = Duration::from_millis(20);
/// How long the wait of a turn holds out, at most, for sends that were expected to complete at once.
const SEND_WAIT_US: u32 = 1_000;
/// Spare cells for gathered sends kept at most.
const SPARE_MESSAGES_MAX: usize = 256;

/// The sizes of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// Entries of the submission queue, a power of two. More than these per turn cost further system calls.
    pub submission_entries: u32,
    /// Entries of the completion queue, a power of two. Beyond them the kernel keeps completions in a list of its own.
    pub completion_entries: u32,
    /// Places in the kernel's table of registered files, for files that are open long (a little cheaper per
    /// operation); 0 for none. Files beyond it work all the same.
    pub registered_files: u32,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self { submission_entries: 1024, completion_entries: 8192, registered_files: 64 }
    }
}

/// A group of buffers for receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId(pub(crate) u16);

/// What [`Ring::submit_and_wait`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// There are completions to take.
    Ready,
    /// There are none: the time is up, or a signal came before it was. The clock tells.
    Idle,
}

/// One io_uring with everything in flight on it.
///
/// All methods take `&self`, so a completion's bytes can be held while operations are started; keep the ring beside
/// the state that its completions change, not inside it. One turn is
/// [`submit_and_wait`](Ring::submit_and_wait), then [`completions`](Ring::completions) until it is empty.
///
/// ```
/// use std::time::Duration;
/// use lockstep_ring::{Completion, Ring, RingConfig, Token};
///
/// let ring = Ring::new(RingConfig::default())?;
/// ring.timer(Duration::from_millis(1), Token(7));
/// let mut fired = 0;
/// while fired == 0 {
///     ring.submit_and_wait(Some(Duration::from_millis(100)))?;
///     for completion in ring.completions() {
///         match completion {
///             Completion::TimerFired { token: Token(7) } => fired += 1,
///             other => panic!("nothing else was asked for: {other:?}"),
///         }
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Ring {
    pub(crate) uring: RefCell<IoUring>,
    pub(crate) ops: RefCell<ManuallyDrop<Ops>>,
    pub(crate) groups: RefCell<ManuallyDrop<Vec<BufferGroup>>>,
    pub(crate) descriptors: RefCell<Descriptors>,
    /// Submissions that found the queue full, in order.
    backlog: RefCell<VecDeque<squeue::Entry>>,
    doorbells: RefCell<Vec<Doorbell>>,
    spare_messages: RefCell<Vec<Pinned<Vectored>>>,
    event: Arc<OwnedFd>,
    own_doorbell: Doorbell,
    has_registered_files: bool,
    /// Whether the kernel (6.12) can wait for several completions and settle for one after a while.
    has_min_wait: bool,
    /// Sends queued since the last wait that are expected to complete within it.
    pub(crate) prompt_sends: Cell<u32>,
    /// Waits so far.
    pub(crate) turns: Cell<u64>,
    pub(crate) is_dropping: Cell<bool>,
    /// The kernel ties the ring to its thread; so does the type.
    not_send: PhantomData<*const ()>,
}

impl Ring {
    /// Makes a ring for the calling thread.
    ///
    /// Waits a moment if there is no memory: what the kernel counts for rings that were closed just now (the probe's, or
    /// a killed process's) comes back late. Otherwise fails as the system calls do; [`probe`](crate::probe) tells why in words.
    pub fn new(config: RingConfig) -> io::Result<Self> {
        let mut attempts = 1;
        let uring = loop {
            match Self::build(config) {
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && attempts < SETUP_ATTEMPTS_MAX => {
                    attempts += 1;
                    std::thread::sleep(SETUP_PAUSE);
                }
                outcome => break outcome?,
            }
        };
        if config.registered_files > 0 {
            uring.submitter().register_files_sparse(config.registered_files)?;
        }
        let has_min_wait = uring.params().is_feature_min_timeout();
        // SAFETY: the descriptor is open as long as `uring`, which outlives this borrow.
        let ring_fd = unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) };
        let ring_fd = Arc::new(ring_fd.try_clone_to_owned()?);
        let event = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?);
        let ring = Self {
            uring: RefCell::new(uring),
            ops: RefCell::new(ManuallyDrop::new(Ops::default())),
            groups: RefCell::new(ManuallyDrop::new(Vec::new())),
            descriptors: RefCell::new(Descriptors::new(config.registered_files)),
            backlog: RefCell::new(VecDeque::new()),
            doorbells: RefCell::new(Vec::new()),
            spare_messages: RefCell::new(Vec::new()),
            event,
            own_doorbell: Doorbell { ring_fd },
            has_registered_files: config.registered_files > 0,
            has_min_wait,
            prompt_sends: Cell::new(0),
            turns: Cell::new(0),
            is_dropping: Cell::new(false),
            not_send: PhantomData,
        };
        ring.listen_for_wakers();
        Ok(ring)
    }

    fn build(config: RingConfig) -> io::Result<IoUring> {
        IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(config.completion_entries.max(config.submission_entries))
            .dontfork()
            .build(config.submission_entries)
    }

    /// Adds a group of `count` receive buffers (a power of two, at most 32,768) of `size` bytes each.
    pub fn add_buffer_group(&self, count: u16, size: u32) -> io::Result<GroupId> {
        let group = BufferGroup::new(count, size);
        let mut groups = self.groups.borrow_mut();
        let id = u16::try_from(groups.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let uring = self.uring.borrow();
        // SAFETY: the slots are `count` entries at a page boundary; the group moves into the table below, its memory
        // does not, and both live until the ring is gone (or are leaked with it).
        unsafe { uring.submitter().register_buf_ring_with_flags(group.slots_address(), count, id, 0)? };
        group.lend_all();
        groups.push(group);
        Ok(GroupId(id))
    }

    /// Takes a stream socket or a listener. It should be in blocking mode; the ring never blocks on it.
    ///
    /// Sockets do not go into the table of registered files: when a process is killed the kernel empties that table
    /// some 30 ms late (measured on 6.18), and by its sockets is how others learn that it is gone.
    pub fn adopt_socket(&self, fd: OwnedFd) -> Socket {
        self.descriptors.borrow_mut().insert_socket(fd)
    }

    /// Takes a file or directory.
    pub fn adopt_file(&self, fd: OwnedFd) -> File {
        let raw = fd.as_raw_fd();
        let mut descriptors = self.descriptors.borrow_mut();
        let file = descriptors.insert_file(fd);
        if let Some(place) = descriptors.registered_free.pop() {
            // Registration is an economy: where it fails the plain descriptor does.
            if self.uring.borrow().submitter().register_files_update(place, &[raw]).is_ok() {
                descriptors.open(file.0).registered = Some(place);
            } else {
                descriptors.registered_free.push(place);
            }
        }
        file
    }

    /// Gives a socket up to another owner; `None` (and nothing changes) while an operation is in flight on it.
    pub fn detach_socket(&self, socket: Socket) -> Option<OwnedFd> {
        self.descriptors.borrow_mut().detach(socket.0)
    }

    /// Looks at a socket while the ring owns it: addresses, options. `None` once it is being closed. The closure must
    /// not call the ring.
    pub fn with_socket<R>(&self, socket: Socket, look: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        self.descriptors.borrow().fd(socket.0).map(|fd| look(fd.as_fd()))
    }

    /// Cancels what is in flight on the socket, then closes it.
    /// [`Completion::Closed`](crate::Completion::Closed) is its last completion.
    ///
    /// Bytes that the peer sent and nobody received make TCP answer with a reset, which may overtake what was sent
    /// last; who wants it to arrive shuts down the sending half and reads to the end first.
    pub fn close(&self, socket: Socket, token: Token) {
        if self.descriptors.borrow_mut().begin_close(socket.0, token) {
            self.start_close(socket.0);
        } else {
            self.cancel_all_on(socket.0);
        }
    }

    /// Closes the file once what is in flight on it has ended.
    pub fn close_file(&self, file: File, token: Token) {
        if self.descriptors.borrow_mut().begin_close(file.0, token) {
            self.start_close(file.0);
        }
    }

    pub(crate) fn start_close(&self, key: Key) {
        let (fd, registered) = self.descriptors.borrow_mut().take_for_close(key);
        if let Some(place) = registered {
            let close = opcode::Close::new(Fixed(place)).build();
            // SAFETY: the entry refers to no memory.
            unsafe { self.start(Op::Close { descriptor: key }, close) };
        }
        let close = opcode::Close::new(Fd(std::os::fd::IntoRawFd::into_raw_fd(fd))).build();
        // SAFETY: the entry refers to no memory; it owns the descriptor's number from here on.
        unsafe { self.start(Op::Close { descriptor: key }, close) };
    }

    fn cancel_all_on(&self, key: Key) {
        let descriptors = self.descriptors.borrow();
        let Some(fd) = descriptors.fd(key) else { return };
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::fd(Fd(fd.as_raw_fd())).all()).build();
        // SAFETY: the entry refers to no memory.
        unsafe { self.push(cancel.user_data(KIND_IGNORED)) };
    }

    /// Asks the kernel to end an operation early. Its last completion comes as always, with `ECANCELED` or, if it was
    /// too late, with its outcome.
    pub fn cancel(&self, id: OpId) {
        if let Some(op) = self.ops.borrow_mut().get_mut(id) {
            // A send that went out in part reports that part when it is cancelled; it must not be continued then.
            if let Op::Send { is_cancelled, .. } | Op::SendVectored { is_cancelled, .. } = op {
                *is_cancelled = true;
            }
            let cancel = opcode::AsyncCancel::new(id.user_data()).build();
            // SAFETY: the entry refers to no memory.
            unsafe { self.push(cancel.user_data(KIND_IGNORED)) };
        }
    }

    /// Yields [`Completion::TimerFired`](crate::Completion::TimerFired) after this time. The timeout of the wait is
    /// cheaper where one deadline will do.
    pub fn timer(&self, after: Duration, token: Token) -> OpId {
        let after = Pinned::new(timespec(after));
        let entry = opcode::Timeout::new(after.as_ptr()).build();
        // SAFETY: the pinned time is the operation's.
        unsafe { self.start(Op::Timer { token, after }, entry) }
    }

    /// The bell of this ring, to be handed to the threads of other rings.
    pub fn doorbell(&self) -> Doorbell {
        self.own_doorbell.clone()
    }

    /// Takes another ring's bell, for as long as this ring lives.
    pub fn connect_doorbell(&self, doorbell: Doorbell) -> DoorbellId {
        let mut doorbells = self.doorbells.borrow_mut();
        let id = u32::try_from(doorbells.len()).expect("fewer doorbells than 2^32");
        doorbells.push(doorbell);
        DoorbellId(id)
    }

    /// Makes the other ring yield [`Completion::DoorbellRang`](crate::Completion::DoorbellRang) with this word.
    ///
    /// Rides the next submission and yields nothing here unless it fails. A ring that is gone hears nothing, and the
    /// kernel does not say so: who needs to know learns it from the other thread's end.
    pub fn ring_doorbell(&self, doorbell: DoorbellId, word: u32) {
        let target = Fd(self.doorbells.borrow()[doorbell.0 as usize].ring_fd.as_raw_fd());
        let entry = opcode::MsgRingData::new(target, 0, KIND_RANG | u64::from(word), None).build();
        let entry =
            entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(KIND_RING_FAILED | u64::from(doorbell.0));
        // SAFETY: the entry refers to no memory, and the doorbell's descriptor is kept in the ring's table.
        unsafe { self.push(entry) };
    }

    /// A handle that wakes this ring from any thread.
    pub fn waker(&self) -> Waker {
        Waker { event: Arc::clone(&self.event) }
    }

    pub(crate) fn listen_for_wakers(&self) {
        let counter = Pinned::new(0_u64);
        let entry = opcode::Read::new(Fd(self.event.as_raw_fd()), counter.as_ptr().cast(), 8).build();
        // SAFETY: the counter is the operation's, and has the eight bytes that are read.
        unsafe { self.start(Op::Wake { counter }, entry) };
    }

    /// Submits everything queued and waits for one completion or until the timeout, in one system call.
    ///
    /// `None` waits without limit. It does not wait when completions are there already. Errors are the kernel's
    /// refusal of the call itself and end the ring's usefulness.
    ///
    /// A send with room in its socket completes within this very call. That is news to nobody, so it does not end the
    /// wait (with kernel 6.12 and later): the send would cost a turn of its own. A send that unexpectedly takes longer
    /// holds other completions up by a millisecond at most, and its socket is not counted on again until a send of it
    /// was prompt.
    pub fn submit_and_wait(&self, timeout: Option<Duration>) -> io::Result<Turn> {
        self.move_backlog();
        let has_completions = self.has_completions();
        let timeout = if has_completions { Some(Duration::ZERO) } else { timeout.map(|t| t.min(WAIT_MAX)) };
        let time = timespec(timeout.unwrap_or_default());
        let arguments = SubmitArgs::new();
        let arguments = if timeout.is_some() { arguments.timespec(&time) } else { arguments };
        let sends = self.prompt_sends.take();
        self.turns.set(self.turns.get() + 1);
        let is_patient = timeout.is_none_or(|t| t > Duration::from_micros(u64::from(SEND_WAIT_US)));
        let (want, arguments) = if self.has_min_wait && sends > 0 && is_patient {
            (1 + sends as usize, arguments.min_wait_usec(SEND_WAIT_US))
        } else {
            (1, arguments)
        };
        let outcome = self.uring.borrow().submitter().submit_with_args(want, &arguments);
        self.move_backlog();
        match outcome {
            Err(error) if is_fatal(&error) => Err(error),
            _ if self.has_completions() => Ok(Turn::Ready),
            _ => Ok(Turn::Idle),
        }
    }

    fn has_completions(&self) -> bool {
        let mut uring = self.uring.borrow_mut();
        !uring.completion().is_empty() || uring.submission().cq_overflow()
    }

    /// Notes what waits in the sockets at this moment, so that [`Ring::marked_arrivals_are_handed_out`] can tell when
    /// it has all been handed out. Replaces an earlier mark.
    ///
    /// Returns false, and marks nothing, while completions are waiting to be taken: call it after the turn's last.
    /// Costs one `FIONREAD` per socket, so it is for when something is about to be decided by silence.
    #[must_use]
    pub fn mark_arrivals(&self) -> bool {
        // Why this is exact: the kernel moves bytes out of sockets only within a call of this thread (DEFER_TASKRUN), so with no
        // completion left a byte is either counted as handed out or still unread in its socket.
        if self.has_completions() {
            return false;
        }
        self.descriptors.borrow_mut().mark(|fd| rustix::io::ioctl_fionread(fd).unwrap_or(0));
        true
    }

    /// Whether all bytes that had arrived at a socket by the last [`Ring::mark_arrivals`] have been returned by
    /// [`Ring::completions`]. Sockets that ended or were given up since do not count; one whose receive waits to be
    /// armed again does, until it has been and has delivered.
    pub fn marked_arrivals_are_handed_out(&self) -> bool {
        self.descriptors.borrow().behind_mark() == 0
    }

    /// The same for one socket: whether something that had arrived there by the last mark is still to be handed out.
    pub fn is_behind_mark(&self, socket: Socket) -> bool {
        self.descriptors.borrow_mut().is_behind_mark(socket.0)
    }

    /// Operations in flight, the ring's own wait for its wakers included.
    pub fn ops_in_flight(&self) -> usize {
        self.ops.borrow().in_flight()
    }

    /// Puts an operation into the table, then queues its entry.
    ///
    /// # Safety
    ///
    /// All memory that the entry refers to must be owned by the operation and keep its address when the operation
    /// moves, or be a buffer group's.
    pub(crate) unsafe fn start(&self, op: Op, entry: squeue::Entry) -> OpId {
        if let Some(key) = op.descriptor() {
            self.descriptors.borrow_mut().op_started(key);
        }
        let id = self.ops.borrow_mut().insert(op);
        // SAFETY: by this function's contract the memory is owned by the table now, until the last completion.
        unsafe { self.push(entry.user_data(KIND_OP | id.user_data())) };
        id
    }

    /// Queues an entry. A full queue is submitted; if the kernel does not take it the entry waits its turn.
    ///
    /// # Safety
    ///
    /// As for [`Ring::start`].
    pub(crate) unsafe fn push(&self, entry: squeue::Entry) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            let mut uring = self.uring.borrow_mut();
            // SAFETY: the caller's promise.
            if unsafe { uring.submission().push(&entry) }.is_ok() {
                return;
            }
            // An error here shows again, and is handled, at the turn's own submission.
            let _ = uring.submit();
            // SAFETY: the caller's promise.
            if unsafe { uring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        backlog.push_back(entry);
    }

    fn move_backlog(&self) {
        let mut backlog = self.backlog.borrow_mut();
        let mut uring = self.uring.borrow_mut();
        while let Some(entry) = backlog.front() {
            // SAFETY: whoever put the entry into the backlog promised that its memory outlives the operation.
            if unsafe { uring.submission().push(entry) }.is_err() {
                return;
            }
            backlog.pop_front();
        }
    }

    /// The open descriptor in the form in which the kernel is to find it.
    pub(crate) fn target(&self, key: Key) -> Target {
        let mut descriptors = self.descriptors.borrow_mut();
        if let Some(place) = descriptors.open(key).registered {
            return Target::Registered(place);
        }
        Target::Plain(descriptors.fd(key).map_or(-1, AsRawFd::as_raw_fd))
    }

    /// The same for an operation that has begun, whose descriptor may wait to be closed.
    pub(crate) fn target_of_op(&self, key: Key) -> Target {
        Target::Plain(self.descriptors.borrow().fd(key).map_or(-1, AsRawFd::as_raw_fd))
    }

    pub(crate) fn lend_again(&self, group: GroupId, buffer_id: u16) {
        self.groups.borrow()[usize::from(group.0)].lend(buffer_id);
    }

    /// The size of a group's buffers.
    pub(crate) fn group_buffer_size(&self, group: GroupId) -> u32 {
        self.groups.borrow()[usize::from(group.0)].size()
    }

    pub(crate) fn spare_message(&self) -> Pinned<Vectored> {
        self.spare_messages.borrow_mut().pop().unwrap_or_else(|| Pinned::new(Vectored::new()))
    }

    pub(crate) fn return_message(&self, message: Pinned<Vectored>) {
        let mut spare = self.spare_messages.borrow_mut();
        if spare.len() < SPARE_MESSAGES_MAX {
            spare.push(message);
        }
    }
}

/// The longest wait asked of the kernel; longer ones are not told apart from it.
const WAIT_MAX: Duration = Duration::from_secs(3600 * 24 * 365);

/// A descriptor as an entry names it.
pub(crate) enum Target {
    Plain(i32),
    Registered(u32),
}

/// Builds an entry for a [`Target`], whichever form it has.
macro_rules! entry_on {
    ($target:expr, |$fd:ident| $entry:expr) => {
        match $target {
            $crate::ring::Target::Plain(raw) => {
                let $fd = io_uring::types::Fd(raw);
                $entry
            }
            $crate::ring::Target::Registered(index) => {
                let $fd = io_uring::types::Fixed(index);
                $entry
            }
        }
    };
}
pub(crate) use entry_on;

/// Whether `io_uring_enter` refused for good: not for the time, a signal, or resources that come back.
fn is_fatal(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
    )
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::new().sec(duration.as_secs()).nsec(duration.subsec_nanos())
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.is_dropping.set(true);
        let deadline = Instant::now() + DROP_WAIT;
        while self.ops_in_flight() > 0 && Instant::now() < deadline {
            // What is queued must be known to the kernel before it can be cancelled. It may run instead, as if the
            // drop had come a moment later.
            if self.submit_and_wait(Some(Duration::ZERO)).is_err() {
                break;
            }
            let pause = Timespec::new().nsec(10_000_000);
            // Whatever it says, the completions decide.
            let _ = self.uring.borrow().submitter().register_sync_cancel(Some(pause), CancelBuilder::any());
            for completion in self.completions() {
                drop(completion);
            }
            if self.ops_in_flight() > 0 && self.submit_and_wait(Some(Duration::from_millis(10))).is_err() {
                break;
            }
        }
        if self.has_registered_files {
            // Else the kernel closes them when it gets round to it; a failure means just that.
            let _ = self.uring.borrow().submitter().unregister_files();
        }
        if self.ops_in_flight() > 0 {
            // The kernel may touch the memory of these at any later time: it must never be freed. Descriptors are
            // released; the kernel holds its own references to the files.
            return;
        }
        let mut groups = self.groups.borrow_mut();
        for id in 0..groups.len() {
            if let Ok(id) = u16::try_from(id) {
                // No receive is in flight any more; failing to unregister an idle ring of buffers harms nothing.
                let _ = self.uring.borrow().submitter().unregister_buf_ring(id);
            }
        }
        // SAFETY: nothing is in flight, so the kernel writes to no buffer; the groups are not used after this.
        unsafe { ManuallyDrop::drop(&mut groups) };
        // SAFETY: as above for the table, which is empty; it is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.ops.borrow_mut()) };
    }
}
