//! The task that drives the core of one connection, with the simulated clients that share it.
//!
//! Invariant: one poll does a bounded amount of work and never waits, so that the tasks of an executor share it
//! fairly; the time that the core and the clients are told was read after the bytes they are told of had come. Deliberately
//! absent: what the clients want, and what the bytes mean.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use glommio::timer::Timer;
use lockstep_client::core::{Action, ClientConfig, ClientCore, Time};

use crate::clock;
use crate::profile::Crowd;
use crate::socket::{News, Socket};
use crate::tally::Pulse;

/// What is read at once, in bytes.
const READ_BYTES: usize = 16 * 1024;
/// Reads in one poll.
const TURNS_MAX: usize = 8;
/// The longest sleep, in ms: timers stand still while the machine is suspended, and the end may come early.
const SLEEP_MS_MAX: u64 = 100;
/// How long closing the sessions may take, in ms. What is left then expires at its cell.
const CLOSE_MS_MAX: u64 = 3_000;

pub(crate) struct Driver<C> {
    core: ClientCore,
    crowd: C,
    socket: Socket,
    buffer: Box<[u8]>,
    pulse: Arc<Pulse>,
    timer: Timer,
    /// When the timer fires.
    timer_at: Time,
    /// When closing is given up, once it has begun.
    close_until: Option<Time>,
}

impl<C: Crowd> Driver<C> {
    pub(crate) fn new(config: ClientConfig, crowd: C, pulse: Arc<Pulse>) -> Driver<C> {
        let now = clock::now();
        Driver {
            core: ClientCore::new(config, now),
            crowd,
            socket: Socket::new(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            pulse,
            timer: Timer::new(Duration::ZERO),
            timer_at: now,
            close_until: None,
        }
    }

    /// Runs until the load is over and the sessions are closed.
    pub(crate) async fn run(mut self) {
        std::future::poll_fn(move |cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURNS_MAX {
            let mut is_quiet = true;
            if let Poll::Ready(news) = self.socket.poll_news(cx, &mut self.buffer) {
                is_quiet = false;
                self.on_news(news);
            }
            let now = clock::now();
            self.on_time(now);
            self.settle(now);
            if let Some(news) = self.socket.poll_send(cx) {
                is_quiet = false;
                self.on_news(news);
            }
            if self.is_done(now) {
                return Poll::Ready(());
            }
            if is_quiet && self.poll_timer(cx, now).is_pending() {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn on_news(&mut self, news: News) {
        let now = clock::now();
        match news {
            News::Connected(connection) => self.core.on_connected(connection, now),
            News::Failed(connection, trouble) => self.core.on_connect_failed(connection, &trouble, now),
            News::Bytes(connection, count) => self.core.on_bytes(connection, &self.buffer[..count], now),
            News::Closed(connection, trouble) => self.core.on_disconnected(connection, &trouble, now),
        }
    }

    fn on_time(&mut self, now: Time) {
        if self.core.deadline().is_some_and(|at| at <= now) {
            self.core.on_tick(now);
        }
        if self.close_until.is_none() && self.pulse.is_over(now) {
            self.close_until = Some(now.plus_ms(CLOSE_MS_MAX));
            self.crowd.close(&mut self.core, now);
        }
        if self.crowd.deadline().is_some_and(|at| at <= now) {
            self.crowd.on_tick(&mut self.core, now);
        }
    }

    /// Hands events to the clients and carries the core's actions out, until there is none of either.
    fn settle(&mut self, now: Time) {
        while let Some(event) = self.core.poll_event() {
            self.crowd.on_event(event, &mut self.core, now);
        }
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect { connection, endpoint } => self.socket.connect(connection, endpoint),
                Action::Send { connection, bytes } => self.socket.send(connection, &bytes),
                Action::Disconnect { connection } => self.socket.disconnect(connection),
            }
        }
    }

    fn is_done(&self, now: Time) -> bool {
        self.close_until.is_some_and(|until| self.core.is_idle() || until <= now)
    }

    /// Ready when something is due. A timer that would fire early is left as it is: waking once for nothing costs less than
    /// moving it with every answer.
    fn poll_timer(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<()> {
        let end = self.close_until.unwrap_or(self.pulse.end());
        let due = [self.core.deadline(), self.crowd.deadline(), Some(end)].into_iter().flatten().min();
        let wanted = now.plus_ms(SLEEP_MS_MAX).min(due.unwrap_or(Time::NEVER));
        if self.timer_at <= now || self.timer_at > wanted {
            self.timer = Timer::new(Duration::from_nanos(wanted.0.saturating_sub(now.0)));
            self.timer_at = wanted;
        }
        Pin::new(&mut self.timer).poll(cx).map(|_| ())
    }
}
