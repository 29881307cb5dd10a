//! The pages in a real browser: without scripts, in four languages, on a narrow screen, with the keyboard alone. Runs where
//! chromium is on the PATH; screenshots are left in the build directory.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use schemas::token::Purpose;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::reader::Reader;

/// A browser that has not finished by then is stuck.
const GIVE_UP: Duration = Duration::from_secs(90);
/// The narrowest screen a page must fit (WCAG 2.2, 1.4.10).
const NARROW: u32 = 320;
const LANGUAGES: [&str; 4] = ["en", "de", "fr", "es"];

/// A headless browser that is talked to through two pipes (`--remote-debugging-pipe`).
struct Browser {
    child: Arc<Mutex<Child>>,
    to: File,
    from: BufReader<File>,
    last: u64,
    session: Option<String>,
    heard: Vec<String>,
}

impl Browser {
    /// `None` where there is no browser.
    fn start(dir: &Path) -> Option<Self> {
        let found = Command::new("chromium").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return None;
        }
        let _ = std::fs::remove_dir_all(dir);
        std::fs::create_dir_all(dir).unwrap();
        let (down, up) = (dir.join("down"), dir.join("up"));
        assert!(Command::new("mkfifo").args([&down, &up]).status().unwrap().success());
        let child = Command::new("sh")
            .arg("-c")
            .arg(
                "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                  --user-data-dir=\"$1/profile\" --remote-debugging-pipe 3<\"$1/down\" 4>\"$1/up\"",
            )
            .args(["sh", dir.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let child = Arc::new(Mutex::new(child));
        let stuck = Arc::downgrade(&child);
        std::thread::spawn(move || {
            std::thread::sleep(GIVE_UP);
            // Its end closes the pipe, which ends the read that waits for it. By its handle: the number of one that has ended may be
            // another process's by now.
            if let Some(child) = stuck.upgrade() {
                let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
            }
        });
        let to = OpenOptions::new().write(true).open(down).unwrap();
        let from = BufReader::new(File::open(up).unwrap());
        let mut browser = Self { child, to, from, last: 0, session: None, heard: Vec::new() };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser.call("Page.enable", json!({}));
        browser.call("Network.enable", json!({}));
        browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
        Some(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let answer = self.read();
            if answer["id"] == json!(self.last) {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser has ended");
        let message: Value = serde_json::from_slice(&bytes).unwrap();
        if let Some(method) = message["method"].as_str() {
            self.heard.push(method.to_owned());
        }
        message
    }

    /// Does something after which a page loads, and waits until it has.
    fn load(&mut self, act: impl FnOnce(&mut Self)) {
        self.heard.clear();
        act(self);
        while !self.heard.iter().any(|event| event == "Page.loadEventFired") {
            self.read();
        }
    }

    fn go(&mut self, url: &str) {
        self.load(|browser| {
            browser.call("Page.navigate", json!({"url": url}));
        });
    }

    fn language(&mut self, language: &str) {
        self.call("Network.setExtraHTTPHeaders", json!({"headers": {"Accept-Language": language}}));
    }

    fn width(&mut self, width: u32) {
        let metrics = json!({"width": width, "height": 720, "deviceScaleFactor": 1, "mobile": width == NARROW});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    fn html(&mut self) -> String {
        let root = self.call("DOM.getDocument", json!({"depth": 0}))["root"]["nodeId"].clone();
        self.call("DOM.getOuterHTML", json!({"nodeId": root}))["outerHTML"].as_str().unwrap().to_owned()
    }

    /// How wide the page is; more than the screen means scrolling sideways.
    fn content_width(&mut self) -> f64 {
        self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"]["width"].as_f64().unwrap()
    }

    /// What a screen reader is told has the focus: role and name.
    fn focused(&mut self) -> (String, String) {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let is_focused = |node: &&Value| {
            let focused = |property: &Value| property["name"] == "focused" && property["value"]["value"] == true;
            node["role"]["value"] != "RootWebArea"
                && node["properties"].as_array().is_some_and(|all| all.iter().any(focused))
        };
        let node = tree["nodes"].as_array().unwrap().iter().find(is_focused).cloned().unwrap_or_default();
        let text = |name: &str| node[name]["value"].as_str().unwrap_or_default().to_owned();
        (text("role"), text("name"))
    }

    fn press(&mut self, key: &str, code: &str, number: u32, text: &str) {
        let event = |kind: &str| json!({"type": kind, "key": key, "code": code, "windowsVirtualKeyCode": number});
        let mut down = event(if text.is_empty() { "rawKeyDown" } else { "keyDown" });
        if !text.is_empty() {
            down["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", event("keyUp"));
    }

    fn tab(&mut self) {
        self.press("Tab", "Tab", 9, "");
    }

    fn space(&mut self) {
        self.press(" ", "Space", 32, " ");
    }

    fn enter(&mut self) {
        self.load(|browser| browser.press("Enter", "Enter", 13, "\r"));
    }

    fn screenshot(&mut self, file: &Path) {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}));
        std::fs::write(file, STANDARD.decode(shot["data"].as_str().unwrap()).unwrap()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Somebody with two topics, and a server for his browser.
async fn served() -> (Reader, String) {
    let reader = Reader::start().await;
    reader.topic("News", true).await;
    reader.topic("Offers and a rather long name that has to go into a second line", true).await;
    let serving = ingress::serve(Arc::clone(&reader.ready.edge.ingress), CancellationToken::new()).await.unwrap();
    let base = format!("http://{}", serving.address);
    (reader, base)
}

fn browser(name: &str) -> Option<(Browser, PathBuf)> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let browser = Browser::start(&dir.join("browser"));
    if browser.is_none() {
        println!("skipped: no chromium on the PATH");
    }
    browser.map(|browser| (browser, dir))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_fit_a_narrow_screen_in_every_language_without_scripts() {
    let Some((mut browser, dir)) = tokio::task::block_in_place(|| browser("pages")) else { return };
    let (reader, base) = served().await;
    reader.is_asked().await;
    let pages = [
        ("unsubscribe", Purpose::Unsubscribe),
        ("preferences", Purpose::Preferences),
        ("confirmation", Purpose::Confirm),
    ];
    tokio::task::block_in_place(|| {
        for language in LANGUAGES {
            browser.language(language);
            for (name, purpose) in pages {
                for width in [NARROW, 1_024] {
                    browser.width(width);
                    browser.go(&format!("{base}{}", reader.path(purpose)));
                    let html = browser.html();
                    assert!(html.contains(&format!("<html lang=\"{language}\">")), "{html}");
                    assert!(browser.content_width() <= f64::from(width), "{name} {language} is wider than {width}");
                    browser.screenshot(&dir.join(format!("{name}-{language}-{width}.png")));
                }
            }
        }
    });
    println!("screenshots are in {}", dir.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branded_page_has_the_tenants_text_and_colors() {
    let Some((mut browser, dir)) = tokio::task::block_in_place(|| browser("branded")) else { return };
    let (reader, base) = served().await;
    let pages = json!({
        "unsubscribe_text": "We write twice a month.\nNever more <b>often</b>.", "preferences_text": "Choose & keep",
        "button_color": "#0A5C36", "background_color": "#eef7f1", "logo_url": "https://cdn.acme.invalid/logo.png",
    });
    let changed = reader.ready.client.patch("/v1/tenant", json!({"pages": pages})).await;
    assert_eq!(changed.body["tenant"]["pages"]["button_color"], json!("#0a5c36"), "{}", changed.body);
    tokio::task::block_in_place(|| {
        browser.language("en");
        for (name, purpose, text) in [
            ("unsubscribe", Purpose::Unsubscribe, "Never more &lt;b&gt;often&lt;/b&gt;."),
            ("preferences", Purpose::Preferences, "Choose &amp; keep"),
        ] {
            for width in [NARROW, 1_024] {
                browser.width(width);
                browser.go(&format!("{base}{}", reader.path(purpose)));
                let html = browser.html();
                assert!(html.contains(text) && html.contains("background: #0a5c36"), "{html}");
                assert!(browser.content_width() <= f64::from(width), "{name} is wider than {width}");
                browser.screenshot(&dir.join(format!("{name}-{width}.png")));
            }
        }
    });
    println!("screenshots are in {}", dir.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_can_be_done_with_the_keyboard_alone() {
    let Some((mut browser, dir)) = tokio::task::block_in_place(|| browser("keyboard")) else { return };
    let (reader, base) = served().await;
    let told = |browser: &mut Browser, text: &str| assert!(browser.html().contains(text), "{}", browser.html());
    tokio::task::block_in_place(|| {
        browser.language("en");
        browser.width(NARROW);
        browser.go(&format!("{base}{}", reader.path(Purpose::Preferences)));
        browser.tab();
        assert_eq!(browser.focused(), ("checkbox".to_owned(), "News".to_owned()));
        browser.screenshot(&dir.join("focus.png"));
        browser.space();
        browser.tab();
        browser.tab();
        assert_eq!(browser.focused(), ("button".to_owned(), "Save choices".to_owned()));
        browser.enter();
        told(&mut browser, "Your choices are saved");
        browser.screenshot(&dir.join("saved.png"));
    });
    let left =
        "select count(*) from topic_opt_outs d join audiences a on a.id = d.audience_id where a.public_name = 'News'";
    assert_eq!((reader.count(left).await, reader.count("select count(*) from topic_opt_outs").await), (1, 1));
    tokio::task::block_in_place(|| {
        for _ in 0..4 {
            browser.tab();
        }
        assert_eq!(browser.focused(), ("button".to_owned(), "Unsubscribe from everything".to_owned()));
        browser.enter();
        told(&mut browser, "You get no marketing email");
        browser.screenshot(&dir.join("left.png"));
    });
    assert_eq!(reader.marketing_status().await, "unsubscribed");
    tokio::task::block_in_place(|| {
        browser.tab();
        browser.enter();
        told(&mut browser, "You are subscribed again");
        browser.go(&format!("{base}{}", reader.path(Purpose::Unsubscribe)));
        browser.tab();
        assert_eq!(browser.focused(), ("button".to_owned(), "Unsubscribe".to_owned()));
        browser.enter();
        told(&mut browser, "You are unsubscribed");
        browser.tab();
        browser.enter();
        told(&mut browser, "Email preferences");
    });
    assert_eq!(reader.marketing_status().await, "unsubscribed");
    sqlx::query("delete from suppressions").execute(&reader.ready.edge.pool).await.unwrap();
    reader.is_asked().await;
    tokio::task::block_in_place(|| {
        browser.go(&format!("{base}{}", reader.path(Purpose::Confirm)));
        browser.tab();
        assert_eq!(browser.focused(), ("button".to_owned(), "Yes, subscribe me".to_owned()));
        browser.enter();
        told(&mut browser, "You are subscribed");
        browser.screenshot(&dir.join("confirmed.png"));
    });
    assert_eq!(reader.marketing_status().await, "subscribed");
}
