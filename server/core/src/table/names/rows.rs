//! One node of the index: names in order, back to back, and a value to each.
//!
//! Invariant: `shared` bytes begin every name, and a row's head is the first eight bytes behind them, as a number that
//! orders as they do. Deliberately absent: other nodes.

#[derive(Clone, Debug)]
pub(super) struct Rows<T> {
    /// How many bytes all names are known to begin with alike.
    shared: usize,
    rows: Vec<Row<T>>,
    names: String,
}

#[derive(Clone, Debug)]
struct Row<T> {
    head: u64,
    /// Where the name ends among the names.
    end: u32,
    value: T,
}

const HEAD_BYTES: usize = size_of::<u64>();

/// The bytes of a name behind its first `shared` ones; zeros stand for those that it does not have.
fn head(name: &[u8], shared: usize) -> u64 {
    let rest = &name[shared..];
    match rest.first_chunk::<HEAD_BYTES>() {
        Some(head) => u64::from_be_bytes(*head),
        None => {
            let mut head = [0; HEAD_BYTES];
            head[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(head)
        }
    }
}

fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn offset(at: usize) -> u32 {
    u32::try_from(at).expect("the names of a node are few and short")
}

impl<T> Rows<T> {
    pub(super) fn new() -> Rows<T> {
        Rows { shared: 0, rows: Vec::new(), names: String::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.rows[before].end as usize)
    }

    pub(super) fn name(&self, at: usize) -> &str {
        &self.names[self.start(at)..self.rows[at].end as usize]
    }

    pub(super) fn value(&self, at: usize) -> &T {
        &self.rows[at].value
    }

    pub(super) fn value_mut(&mut self, at: usize) -> &mut T {
        &mut self.rows[at].value
    }

    /// Looks at the rows that a search begins with.
    pub(super) fn touch(&self) -> usize {
        let len = self.len();
        [len / 8, len / 4, len / 2, len / 4 * 3]
            .iter()
            .filter_map(|at| self.rows.get(*at))
            .fold(0, |seen, row| seen ^ row.end as usize)
    }

    /// Where the name is, or where it belongs.
    pub(super) fn find(&self, name: &str) -> Result<usize, usize> {
        let (shared, name) = (&self.names.as_bytes()[..self.shared], name.as_bytes());
        if !name.starts_with(shared) {
            return Err(if name < shared { 0 } else { self.len() });
        }
        let head = head(name, self.shared);
        let first = self.rows.partition_point(|row| row.head < head);
        let alike = self.rows[first..].iter().take_while(|row| row.head == head).count();
        // The heads do not tell these apart.
        let (mut low, mut high) = (first, first + alike);
        while low < high {
            let middle = low.midpoint(high);
            match self.name(middle).as_bytes().cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Puts a name where it belongs.
    pub(super) fn insert(&mut self, at: usize, name: &str, value: T) {
        if self.rows.is_empty() {
            self.shared = name.len();
        } else {
            let common = common_bytes(&self.names.as_bytes()[..self.shared], name.as_bytes());
            if common < self.shared {
                self.share(common);
            }
        }
        let start = self.start(at);
        self.names.insert_str(start, name);
        let row = Row { head: head(name.as_bytes(), self.shared), end: offset(start + name.len()), value };
        self.rows.insert(at, row);
        let bytes = offset(name.len());
        self.rows[at + 1..].iter_mut().for_each(|row| row.end += bytes);
    }

    pub(super) fn remove(&mut self, at: usize) -> T {
        let start = self.start(at);
        let row = self.rows.remove(at);
        self.names.drain(start..row.end as usize);
        let bytes = row.end - offset(start);
        self.rows[at..].iter_mut().for_each(|row| row.end -= bytes);
        if self.rows.is_empty() {
            self.shared = 0;
        }
        row.value
    }

    /// The first row has this name from here on, which is at most what it was.
    pub(super) fn rename_first(&mut self, name: &str) {
        let value = self.remove(0);
        self.insert(0, name, value);
    }

    /// Splits the rows when there are more than so many, where the one that was put `at` came to be among them. Whoever
    /// fills an index in order gets full nodes.
    pub(super) fn split_if_over(&mut self, rows_max: usize, at: usize) -> Option<Rows<T>> {
        let len = self.len();
        if len <= rows_max {
            return None;
        }
        let middle = if at + 1 == len { len - len / 8 } else { len / 2 };
        let start = self.start(middle);
        let mut names = String::with_capacity(self.names.len());
        names.push_str(&self.names[start..]);
        self.names.truncate(start);
        let mut rows = Vec::with_capacity(rows_max + 1);
        rows.extend(self.rows.drain(middle..));
        let bytes = offset(start);
        rows.iter_mut().for_each(|row| row.end -= bytes);
        let mut right = Rows { shared: 0, rows, names };
        self.share_all();
        right.share_all();
        Some(right)
    }

    /// Takes over rows that belong behind these.
    pub(super) fn append(&mut self, right: Rows<T>) {
        let bytes = offset(self.names.len());
        self.names.push_str(&right.names);
        self.rows.extend(right.rows.into_iter().map(|row| Row { end: row.end + bytes, ..row }));
        self.share_all();
    }

    /// Finds out how much all names begin with alike.
    fn share_all(&mut self) {
        let common = match self.len() {
            0 => 0,
            // What lies between the first and the last begins like both.
            len => common_bytes(self.name(0).as_bytes(), self.name(len - 1).as_bytes()),
        };
        self.share(common);
    }

    fn share(&mut self, shared: usize) {
        self.shared = shared;
        let names = self.names.as_bytes();
        let mut start = 0;
        for row in &mut self.rows {
            let end = row.end as usize;
            row.head = head(&names[start..end], shared);
            start = end;
        }
    }
}
