//! Readers in real child processes: an input that crashes, exhausts or stops its reader costs one job.
//!
//! The child is this program itself, started as `reader`; so it has no test harness of libtest's.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{path::Path, time::Duration};

use runtime::{
    Job, ReadFault, Reader, ReaderError, ReaderSettings, Spent,
    reader::{INPUT_BYTES_MAX, RESULT_BYTES_MAX, serve},
};

const MEMORY_MB: u64 = 64;

const REVERSE: Job = Job { kind: "reverse", run: |input| Ok(input.iter().rev().copied().collect()) };
const OVERFLOW: Job = Job { kind: "overflow", run: |_| Ok(vec![descend(0)]) };
const EXHAUST: Job = Job { kind: "exhaust", run: exhaust };
const HANG: Job = Job {
    kind: "hang",
    run: |_| loop {
        std::thread::park();
    },
};
const PANIC: Job = Job { kind: "panic", run: |input| Ok(vec![input[input.len()]]) };
const SPEND: Job = Job { kind: "spend", run: |_| Err(ReadFault::Spent(Spent::Depth)) };
const LARGE: Job = Job { kind: "large", run: |_| Ok(vec![0; RESULT_BYTES_MAX + 1]) };
const OPEN: Job = Job { kind: "open", run: |_| Ok(vec![u8::from(std::fs::File::open("/dev/null").is_ok())]) };
const ENVIRONMENT: Job = Job {
    kind: "environment",
    run: |_| Ok(std::env::vars().map(|(name, _)| name).collect::<Vec<_>>().join(" ").into_bytes()),
};
const PROCESS: Job = Job { kind: "process", run: |_| Ok(std::process::id().to_string().into_bytes()) };
const UNKNOWN: Job = Job { kind: "unknown", run: |_| Ok(Vec::new()) };

fn descend(depth: u64) -> u8 {
    let frame = std::hint::black_box([depth; 128]);
    // Not a tail call: the frame is needed afterwards.
    let deeper = if depth == u64::MAX { 0 } else { descend(depth + 1) };
    deeper ^ std::hint::black_box(frame)[0] as u8
}

fn exhaust(_: &[u8]) -> Result<Vec<u8>, ReadFault> {
    let mut held = Vec::new();
    loop {
        held.push(std::hint::black_box(vec![1_u8; 1024 * 1024]));
    }
}

fn settings() -> ReaderSettings {
    ReaderSettings {
        reader_processes: 1,
        reader_memory_mb: MEMORY_MB,
        // Long enough for a busy machine; only the job that hangs waits for it, and sets its own.
        reader_timeout: Duration::from_secs(60),
        reader_program: None,
    }
}

async fn reverses(reader: &Reader) {
    assert_eq!(reader.read(&REVERSE, "abc").await, Ok(b"cba".to_vec()));
}

async fn process(reader: &Reader) -> String {
    String::from_utf8(reader.read(&PROCESS, "").await.unwrap()).unwrap()
}

async fn an_input_that_ends_its_reader_costs_its_own_job_only() {
    let reader = Reader::new(settings());
    for job in [OVERFLOW, EXHAUST, PANIC] {
        assert_eq!(reader.read(&job, "x").await, Err(ReaderError::Crashed), "{}", job.kind);
        reverses(&reader).await;
    }
}

async fn a_reading_that_hangs_is_ended_at_its_time() {
    let reader = Reader::new(ReaderSettings { reader_timeout: Duration::from_secs(2), ..settings() });
    let pid = process(&reader).await;
    assert_eq!(reader.read(&HANG, "x").await, Err(ReaderError::TimedOut));
    assert!(!Path::new("/proc").join(&pid).exists(), "the process that hung is still there");
    reverses(&reader).await;
}

async fn a_spent_budget_is_told_and_the_process_goes_on() {
    let reader = Reader::new(settings());
    let pid = process(&reader).await;
    assert_eq!(reader.read(&SPEND, "x").await, Err(ReaderError::Spent(Spent::Depth)));
    assert_eq!(reader.read(&LARGE, "x").await, Err(ReaderError::Spent(Spent::Held)));
    assert_eq!(reader.read(&UNKNOWN, "x").await, Err(ReaderError::Undecodable));
    assert_eq!(process(&reader).await, pid);
}

async fn an_input_beyond_the_bound_is_refused_and_one_at_the_bound_read() {
    let reader = Reader::new(ReaderSettings { reader_memory_mb: 128, ..settings() });
    let longest = vec![7; INPUT_BYTES_MAX];
    let one_more = [&longest[..], &[7]].concat();
    assert_eq!(reader.read(&REVERSE, one_more).await, Err(ReaderError::Spent(Spent::Input)));
    assert_eq!(reader.read(&OPEN, longest).await, Ok(vec![0]));
}

async fn a_reader_has_no_environment_and_opens_no_file() {
    let reader = Reader::new(settings());
    assert_eq!(reader.read(&ENVIRONMENT, "").await, Ok(b"_RJEM_MALLOC_CONF".to_vec()));
    assert_eq!(reader.read(&OPEN, "").await, Ok(vec![0]));
}

async fn a_reader_that_was_ended_from_outside_is_replaced_without_a_loss() {
    let reader = Reader::new(settings());
    let pid = process(&reader).await;
    let killed = std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success());
    // All its threads are gone: until then the parent is not told, and a job would be answered "crashed".
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let is_dead = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z"));
    eventually(|| threads() <= 1 && is_dead()).await;
    assert_ne!(process(&reader).await, pid);
}

async fn a_cancelled_reading_ends_its_process() {
    let reader = Reader::new(settings());
    let pid = process(&reader).await;
    let cancelled = tokio::time::timeout(Duration::from_millis(200), reader.read(&HANG, "x")).await;
    assert!(cancelled.is_err());
    reverses(&reader).await;
    eventually(|| !Path::new("/proc").join(&pid).exists()).await;
}

async fn a_reader_ends_with_its_parent_even_in_the_middle_of_a_job() {
    // What is left of a parent that was killed: nobody, and a closed pipe.
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["reader", "--memory-mb", "64"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let request = [&[4][..], b"hang", &0_u32.to_be_bytes()].concat();
    std::io::Write::write_all(&mut stdin, &request).unwrap();
    drop(stdin);
    eventually(|| child.try_wait().unwrap().is_some()).await;
}

async fn a_program_that_is_no_reader_is_unavailable_and_not_started_again_at_once() {
    for program in ["/bin/true", "/nowhere/at/all"] {
        let reader = Reader::new(ReaderSettings { reader_program: Some(program.into()), ..settings() });
        for _ in 0..3 {
            let refused = reader.read(&REVERSE, "abc").await.unwrap_err();
            assert_eq!(refused, ReaderError::Unavailable);
            assert!(refused.is_transient());
        }
    }
}

async fn many_readings_share_the_few_processes() {
    let reader = Reader::new(ReaderSettings { reader_processes: 2, ..settings() });
    let pids = futures::future::join_all((0..40).map(|_| process(&reader))).await;
    let distinct: std::collections::BTreeSet<_> = pids.iter().collect();
    assert!((1..=2).contains(&distinct.len()), "{distinct:?}");
}

async fn without_processes_a_panic_still_costs_its_job_only() {
    let reader = Reader::in_process();
    assert_eq!(process(&reader).await, std::process::id().to_string());
    assert_eq!(reader.read(&PANIC, "x").await, Err(ReaderError::Crashed));
    assert_eq!(reader.read(&SPEND, "x").await, Err(ReaderError::Spent(Spent::Depth)));
    reverses(&reader).await;
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "not within a minute");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == "reader") {
        let memory: u64 = arguments[3].parse().unwrap();
        let jobs = vec![REVERSE, OVERFLOW, EXHAUST, HANG, PANIC, SPEND, LARGE, OPEN, ENVIRONMENT, PROCESS];
        match serve(jobs, memory * 1024 * 1024) {
            Ok(never) => match never {},
            Err(error) => panic!("{error}"),
        }
    }
    // What libtest would do, as far as it is used here: a filter, and the names.
    let filter = arguments.iter().skip(1).find(|argument| !argument.starts_with('-'));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    macro_rules! run {
        ($($test:ident),+ $(,)?) => {$(
            if filter.is_none_or(|filter| stringify!($test).contains(filter.as_str())) {
                runtime.block_on($test());
                println!("test {} ... ok", stringify!($test));
            }
        )+};
    }
    run!(
        an_input_that_ends_its_reader_costs_its_own_job_only,
        a_reading_that_hangs_is_ended_at_its_time,
        a_spent_budget_is_told_and_the_process_goes_on,
        an_input_beyond_the_bound_is_refused_and_one_at_the_bound_read,
        a_reader_has_no_environment_and_opens_no_file,
        a_reader_that_was_ended_from_outside_is_replaced_without_a_loss,
        a_cancelled_reading_ends_its_process,
        a_reader_ends_with_its_parent_even_in_the_middle_of_a_job,
        a_program_that_is_no_reader_is_unavailable_and_not_started_again_at_once,
        many_readings_share_the_few_processes,
        without_processes_a_panic_still_costs_its_job_only,
    );
}
