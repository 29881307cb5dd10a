//! The text part of a template that brings none: derived once from the HTML source, with its Liquid still in it.
//!
//! Every control tag is kept, in its order, wherever in the HTML it stood (in an attribute, in a style sheet), so that
//! blocks close as they were opened. Outputs are kept where a reader would see them.

use htmlize::{unescape, unescape_attribute};
use runtime::{Budget, Spent};

use super::escape::is_web_address;
use super::html::may_be_web_address;
use super::markup::{Broken, HtmlTag, HtmlToken, MarkupFaultReason, MarkupReader};
use super::placeholder::{DocumentSegment, Placeholders};
use super::scan::{Item, ItemKind};
use super::structure::{is_balanced, is_control};
use super::syntax::{Block, LiquidTag};

/// The text items of these HTML items.
///
/// # Errors
/// When the budget is spent. HTML that is not closed still gives a text.
pub(super) fn derive(items: &[Item], budget: &Budget) -> Result<Vec<Item>, Spent> {
    let (placeholders, document) = Placeholders::document(items, budget)?;
    let mut writer = Writer { placeholders, page: Page::default(), link: None, hidden: None, lists: Vec::new() };
    let mut reader = MarkupReader::lenient(&document, budget);
    loop {
        match reader.next() {
            Ok(Some(token)) => writer.token(&token, reader.is_hidden()),
            Err(Broken { why: MarkupFaultReason::Spent(spent), .. }) => return Err(spent),
            Ok(None) | Err(_) => break,
        }
    }
    writer.end_link();
    let derived = writer.page.finish();
    // HTML that ends inside a tag can swallow Liquid. Then the text is the outputs, a line each, rather than a broken tree.
    let controls = |items: &[Item]| items.iter().filter(|item| is_control(item)).count();
    if is_balanced(&derived) && controls(&derived) == controls(items) {
        return Ok(derived);
    }
    let without_html = items.iter().map(|item| match item.kind {
        ItemKind::Text(_) => Item::text("\n"),
        _ => item.clone(),
    });
    Ok(without_html.collect())
}

/// Elements that hide what is in them. None of them ends without its end tag.
const HIDEABLE: [&str; 6] = ["div", "span", "table", "section", "center", "font"];
/// Most levels of lists that are indented.
const LIST_INDENTS: usize = 6;

struct Link {
    target: Vec<Item>,
    /// How much stood on the page when the link began: what came after is its text.
    items: usize,
    text: usize,
}

struct Writer {
    placeholders: Placeholders,
    page: Page,
    /// The link being read. Links do not nest: another one ends it.
    link: Option<Link>,
    /// The element that is not displayed, by its name, and how many of that name are open in it.
    hidden: Option<(String, usize)>,
    /// The open lists: how many items a numbered one has so far.
    lists: Vec<Option<u32>>,
}

impl Writer {
    fn token(&mut self, token: &HtmlToken<'_>, is_for_outlook: bool) {
        if is_for_outlook || self.is_hidden(token) {
            return self.controls(token.span().text);
        }
        match token {
            HtmlToken::Text { span, is_raw: false } => self.visible(span.text),
            // Style sheets, scripts, titles.
            HtmlToken::Text { span, .. } | HtmlToken::Comment { span } => self.controls(span.text),
            HtmlToken::Start(tag) => self.start(tag),
            HtmlToken::End { name, span } => {
                self.controls(span.text);
                self.end(&name.to_ascii_lowercase());
            }
        }
    }

    /// Whether this is not displayed: preview texts, and what only some screens show.
    fn is_hidden(&mut self, token: &HtmlToken<'_>) -> bool {
        let name_of = |name: &str| name.to_ascii_lowercase();
        if let (None, HtmlToken::Start(tag)) = (&self.hidden, token) {
            let hides = HIDEABLE.contains(&name_of(tag.name).as_str()) && hides(tag);
            self.hidden = hides.then(|| (name_of(tag.name), 1));
            return hides;
        }
        match (&mut self.hidden, token) {
            (Some((hidden, open)), HtmlToken::Start(tag)) => *open += usize::from(*hidden == name_of(tag.name)),
            (Some((hidden, open)), HtmlToken::End { name, .. }) if *hidden == name_of(name) => {
                *open -= 1;
                if *open == 0 {
                    self.hidden = None;
                }
                return true;
            }
            _ => {}
        }
        self.hidden.is_some()
    }

    /// Begins an item of a list.
    fn list_item(&mut self) {
        self.page.gap(1);
        let depth = self.lists.len().saturating_sub(1);
        let mark = match self.lists.last_mut() {
            Some(Some(number)) if self.page.loops == 0 => {
                *number += 1;
                format!("{number}.")
            }
            _ => "-".to_owned(),
        };
        self.page.literal(&format!("{}{mark}", "  ".repeat(depth.min(LIST_INDENTS))));
        self.page.space = true;
    }

    fn start(&mut self, tag: &HtmlTag<'_>) {
        self.controls(tag.name);
        let name = tag.name.to_ascii_lowercase();
        let mut href = None;
        for attribute in &tag.attributes {
            let (written, value) = (attribute.name.text, attribute.value.text);
            self.controls(written);
            if name == "a" && href.is_none() && written.eq_ignore_ascii_case("href") && self.is_printable(value) {
                href = Some(value);
            } else if name == "img" && written.eq_ignore_ascii_case("alt") {
                self.visible(value);
            } else {
                self.controls(value);
            }
        }
        match name.as_str() {
            "br" => self.page.line_break(),
            "hr" => {
                self.page.gap(2);
                self.page.words("---");
                self.page.gap(2);
            }
            "li" => self.list_item(),
            "ul" | "ol" => {
                // A list in a list is part of its item.
                self.page.gap(if self.lists.is_empty() { 2 } else { 1 });
                self.lists.push((name == "ol").then_some(0));
            }
            "a" => {
                self.end_link();
                let (items, text) = (self.page.items.len(), self.page.text.len());
                self.link = href.map(|href| Link { target: self.placeholders.items(href), items, text });
            }
            block => self.page.gap(gap_around(block)),
        }
    }

    fn end(&mut self, name: &str) {
        match name {
            "a" => self.end_link(),
            "td" | "th" => self.page.space = true,
            "ul" | "ol" => {
                self.lists.pop();
                self.page.gap(if self.lists.is_empty() { 2 } else { 1 });
            }
            block => self.page.gap(gap_around(block)),
        }
    }

    fn end_link(&mut self) {
        if let Some(link) = self.link.take() {
            self.page.link(link);
        }
    }

    fn is_printable(&self, href: &str) -> bool {
        let target = self.placeholders.items(href);
        match target.as_slice() {
            [Item { kind: ItemKind::Text(text), .. }] => {
                let url = unescape_attribute(text);
                let url = url.trim().to_ascii_lowercase();
                is_web_address(&url) || url.starts_with("mailto:") || url.starts_with("tel:")
            }
            _ => may_be_web_address(&target) && is_balanced(&target),
        }
    }

    fn visible(&mut self, text: &str) {
        for segment in self.placeholders.segments(text) {
            match segment {
                DocumentSegment::Text(text) => self.page.words(&unescape(text)),
                DocumentSegment::Id(id) => self.placeholders.get(id).iter().for_each(|item| self.page.item(item)),
            }
        }
    }

    fn controls(&mut self, text: &str) {
        for id in self.placeholders.ids(text) {
            let controls = self.placeholders.get(id).iter().filter(|item| is_control(item));
            controls.for_each(|item| self.page.item(item));
        }
    }
}

fn hides(tag: &HtmlTag<'_>) -> bool {
    let style: String = tag.attribute("style").unwrap_or_default().split_whitespace().collect();
    let style = style.to_ascii_lowercase();
    style.split(';').any(|declaration| matches!(declaration, "display:none" | "display:none!important"))
}

/// How many line ends stand between this element and its neighbours.
fn gap_around(name: &str) -> usize {
    match name {
        "p" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "ul" | "ol" | "dl" | "table" | "blockquote" | "pre"
        | "section" | "article" | "header" | "footer" | "main" | "nav" | "aside" | "address" | "figure" | "form" => 2,
        "div" | "tr" | "li" | "dt" | "dd" | "center" | "figcaption" | "body" => 1,
        _ => 0,
    }
}

/// Lays words out: white space collapses, paragraphs stand apart, nothing begins or ends with empty lines.
#[derive(Default)]
struct Page {
    items: Vec<Item>,
    text: String,
    /// Line ends to write before the next word.
    breaks: usize,
    /// A space to write before the next word.
    space: bool,
    /// Line ends written since the last word.
    written: usize,
    started: bool,
    /// The open loops of Liquid, in which items of lists cannot be numbered.
    loops: usize,
}

impl Page {
    fn gap(&mut self, breaks: usize) {
        self.breaks = self.breaks.max(breaks);
        if breaks > 0 {
            self.space = false;
        }
    }

    fn line_break(&mut self) {
        self.breaks = (self.breaks + 1).min(2);
        self.space = false;
    }

    fn flush(&mut self) {
        if self.started {
            let wanted = self.breaks.saturating_sub(self.written);
            self.text.extend(std::iter::repeat_n('\n', wanted));
            self.written += wanted;
            if self.space && self.written == 0 && !self.text.ends_with(' ') {
                self.text.push(' ');
            }
        }
        self.breaks = 0;
        self.space = false;
    }

    fn words(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                // Invisible padding, such as preheaders are filled up with.
                '\u{200B}'..='\u{200F}' | '\u{34F}' | '\u{FEFF}' | '\u{AD}' | '\u{2060}' => {}
                space if space.is_whitespace() => self.space = true,
                letter => {
                    self.flush();
                    self.text.push(letter);
                    self.started = true;
                    self.written = 0;
                }
            }
        }
    }

    fn item(&mut self, item: &Item) {
        match &item.kind {
            ItemKind::Tag(LiquidTag::For(_)) => self.loops += 1,
            ItemKind::Tag(LiquidTag::End(Block::For)) => self.loops = self.loops.saturating_sub(1),
            _ => {}
        }
        // Written before the item, so that the gap is there whichever way a condition goes.
        self.flush();
        self.push_text();
        self.items.push(item.clone());
        if !is_control(item) {
            self.started = true;
            self.written = 0;
        }
    }

    fn push_text(&mut self) {
        if !self.text.is_empty() {
            self.items.push(Item::text(std::mem::take(&mut self.text)));
        }
    }

    /// Writes a link's target after its text, unless the text is the target.
    fn link(&mut self, link: Link) {
        let shown =
            if self.items.len() == link.items { self.text.get(link.text..).unwrap_or_default().trim() } else { "…" };
        let is_bare = shown.is_empty();
        if let [Item { kind: ItemKind::Text(text), .. }] = link.target.as_slice() {
            let url = unescape_attribute(text).trim().to_owned();
            let short = url.trim_start_matches("mailto:").trim_start_matches("tel:");
            let bare = short.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
            if shown == short || shown == bare || shown == url {
                return;
            }
            let written = if is_bare { short.to_owned() } else { format!(" ({short})") };
            self.literal(&written);
            return;
        }
        self.literal(if is_bare { "" } else { " (" });
        for item in &link.target {
            match &item.kind {
                ItemKind::Text(text) => self.literal(unescape_attribute(text).trim()),
                _ => self.item(item),
            }
        }
        self.literal(if is_bare { "" } else { ")" });
    }

    /// Text as it is, spaces included.
    fn literal(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let space = std::mem::take(&mut self.space);
        self.flush();
        self.text.push_str(text);
        self.started = true;
        self.written = 0;
        self.space = space;
    }

    fn finish(mut self) -> Vec<Item> {
        self.text.truncate(self.text.trim_end().len());
        self.push_text();
        self.items
    }
}
