//! Resolves names while a message renders. Nothing is copied up front: a path goes straight to the field it names, and texts are
//! borrowed. Lists and objects in merge data become Liquid values once a rendering, when one of them is first asked for.
//! A name without a value is [`Missing`], never an error.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::fmt;

use liquid::model::{DisplayCow, KString, KStringCow, ScalarCow, State, Value, ValueCow, ValueView, try_find};
use runtime::{Budget, Spent};
use serde_json::Value as Json;

use super::filters::characters;
use super::limits::{VALUE_DEPTH, text_steps};
use super::merge::{Contact, Links, MergeData};
use super::options::MessageOptions;
use super::syntax::{Index, Operand};

/// The value of a name that has none. To a template it is all of: nothing when printed, false, nil, empty, blank and
/// equal to `""`, so that every common way of asking "is there a first name?" gets the answer no.
#[derive(Debug)]
pub(super) struct Missing;

impl ValueView for Missing {
    fn as_debug(&self) -> &dyn fmt::Debug {
        self
    }

    fn render(&self) -> DisplayCow<'_> {
        DisplayCow::Owned(Box::new(""))
    }

    fn source(&self) -> DisplayCow<'_> {
        DisplayCow::Owned(Box::new("nil"))
    }

    fn type_name(&self) -> &'static str {
        "nil"
    }

    fn query_state(&self, state: State) -> bool {
        !matches!(state, State::Truthy)
    }

    fn to_kstr(&self) -> KStringCow<'_> {
        KStringCow::from_static("")
    }

    fn to_value(&self) -> Value {
        Value::Nil
    }

    fn as_scalar(&self) -> Option<ScalarCow<'_>> {
        Some(ScalarCow::new(""))
    }

    fn is_nil(&self) -> bool {
        true
    }
}

/// A loop that is running.
pub(super) struct Frame {
    pub(super) variable: KString,
    pub(super) item: Value,
    pub(super) index: i64,
    pub(super) length: i64,
}

/// Everything a message's names can mean, and the budget of the rendering.
pub(super) struct RenderScope<'a> {
    options: &'a MessageOptions,
    data: &'a MergeData,
    pub(super) links: &'a dyn Links,
    unsubscribe: OnceCell<String>,
    preferences: OnceCell<String>,
    pub(super) locals: HashMap<KString, Value>,
    pub(super) frames: Vec<Frame>,
    /// `data`, `event` and the contact's fields as Liquid values.
    converted_data: OnceCell<Value>,
    converted_event: OnceCell<Value>,
    converted_fields: OnceCell<Value>,
    pub(super) budget: Budget,
    /// Set when looking up a name spent the budget.
    spent: Cell<Option<Spent>>,
}

impl<'a> RenderScope<'a> {
    pub(super) fn new(options: &'a MessageOptions, data: &'a MergeData, links: &'a dyn Links, budget: Budget) -> Self {
        Self {
            options,
            data,
            links,
            unsubscribe: OnceCell::new(),
            preferences: OnceCell::new(),
            locals: HashMap::new(),
            frames: Vec::new(),
            converted_data: OnceCell::new(),
            converted_event: OnceCell::new(),
            converted_fields: OnceCell::new(),
            budget,
            spent: Cell::new(None),
        }
    }

    /// Charges steps from where no error can be answered. [`RenderScope::value`] answers it.
    fn take(&self, steps: u64) {
        if let Err(spent) = self.budget.take_steps(steps) {
            self.spent.set(Some(spent));
        }
    }

    /// The recipient's language tag.
    pub(super) fn locale(&self) -> Option<&str> {
        self.data.contact.locale.as_deref()
    }

    pub(super) fn unsubscribe(&self) -> &String {
        self.unsubscribe.get_or_init(|| self.links.unsubscribe())
    }

    pub(super) fn preferences(&self) -> &String {
        self.preferences.get_or_init(|| self.links.preferences())
    }

    /// An operand's value. A path that cannot be followed has none.
    pub(super) fn value<'s>(&'s self, operand: &'s Operand) -> Result<ValueCow<'s>, Spent> {
        let path = match operand {
            Operand::Literal(value) => return Ok(ValueCow::Borrowed(value)),
            Operand::Path(path) => path,
        };
        let mut keys = Vec::with_capacity(1 + path.rest.len());
        keys.push(ScalarCow::new(path.root.as_str()));
        for index in &path.rest {
            keys.push(match index {
                Index::Key(key) => ScalarCow::new(key.as_str()),
                Index::Number(number) => ScalarCow::new(*number),
                Index::Computed(operand) => match self.value(operand)?.as_scalar() {
                    Some(key) => key.into_owned(),
                    None => return Ok(missing()),
                },
            });
        }
        let value = self.find(&keys);
        self.spent.get().map_or(Ok(value), Err)
    }

    /// The value of a path; [`Missing`] when there is none.
    fn find(&self, path: &[ScalarCow<'_>]) -> ValueCow<'_> {
        let Some((root, rest)) = path.split_first() else { return missing() };
        self.take(path.len() as u64);
        let root = root.to_kstr();
        if let Some(value) = self.loop_value(&root, rest, self.frames.len()) {
            return value;
        }
        if let Some(value) = self.locals.get(root.as_str()) {
            return tail(value, rest);
        }
        match root.as_str() {
            "contact" => self.contact(rest),
            "data" => self.json_at(&self.converted_data, &self.data.data, rest),
            "event" => self.json_at(&self.converted_event, &self.data.event, rest),
            "sender" => member(rest, |name| match name {
                "name" => Some(&self.options.sender.name),
                "email" => Some(&self.options.sender.email),
                "reply_to" => self.options.sender.reply_to.as_ref(),
                _ => None,
            }),
            "campaign" => member(rest, |name| self.options.campaign.as_ref().and_then(|campaign| campaign.get(name))),
            "tenant" => member(rest, |name| self.options.tenant.get(name)),
            "unsubscribe_url" => borrowed(Some(self.unsubscribe()), rest),
            "preferences_url" => borrowed(Some(self.preferences()), rest),
            "physical_address" => borrowed(self.options.physical_address.as_ref(), rest),
            bare => borrowed(contact_field(&self.data.contact, bare), rest),
        }
    }

    fn contact(&self, rest: &[ScalarCow<'_>]) -> ValueCow<'_> {
        let Some((name, rest)) = rest.split_first() else { return missing() };
        let name = name.to_kstr();
        if name == "fields" {
            let Some((key, tail)) = rest.split_first() else { return missing() };
            let key = key.to_kstr();
            let fields = &self.data.contact.fields;
            return match fields.get(key.as_str()).filter(|value| !value.is_null() && value.as_str() != Some("")) {
                Some(_) => self.json_at(&self.converted_fields, fields, rest),
                None => borrowed(self.options.fallbacks.get(key.as_str()), tail),
            };
        }
        borrowed(contact_field(&self.data.contact, &name), rest)
    }

    /// A loop's variable or `forloop`, looking outwards from the given depth.
    fn loop_value(&self, root: &str, rest: &[ScalarCow<'_>], depth: usize) -> Option<ValueCow<'_>> {
        let frames = self.frames.get(..depth)?;
        if root == "forloop" {
            let frame = frames.last()?;
            let (name, rest) = rest.split_first()?;
            let last = frame.length - 1;
            let value = match name.to_kstr().as_str() {
                "index" => Value::scalar(frame.index + 1),
                "index0" => Value::scalar(frame.index),
                "rindex" => Value::scalar(frame.length - frame.index),
                "rindex0" => Value::scalar(last - frame.index),
                "first" => Value::scalar(frame.index == 0),
                "last" => Value::scalar(frame.index == last),
                "length" => Value::scalar(frame.length),
                "parentloop" => return self.loop_value("forloop", rest, depth - 1),
                _ => return Some(missing()),
            };
            return Some(ValueCow::Owned(value));
        }
        frames.iter().rev().find(|frame| frame.variable == root).map(|frame| tail(&frame.item, rest))
    }
}

fn missing<'a>() -> ValueCow<'a> {
    ValueCow::Borrowed(&Missing)
}

fn tail<'a>(value: &'a Value, rest: &[ScalarCow<'_>]) -> ValueCow<'a> {
    found(value, rest).map_or_else(missing, |found| if found.is_nil() { missing() } else { found })
}

/// What stands at the end of a path. Of a text, liquid's `size` counts the bytes.
fn found<'a>(value: &'a dyn ValueView, path: &[ScalarCow<'_>]) -> Option<ValueCow<'a>> {
    if let Some((property, owner)) = path.split_last()
        && property.to_kstr() == "size"
        && let Some(owner) = try_find(value, owner)
        && let Some(text) = owner.as_scalar()
    {
        return Some(ValueCow::Owned(Value::scalar(characters(&text))));
    }
    try_find(value, path)
}

/// A text field. An empty one is missing.
fn borrowed<'a>(text: Option<&'a String>, rest: &[ScalarCow<'_>]) -> ValueCow<'a> {
    match text {
        Some(text) if !text.is_empty() => found(text, rest).unwrap_or_else(missing),
        _ => missing(),
    }
}

fn member<'a>(rest: &[ScalarCow<'_>], get: impl Fn(&str) -> Option<&'a String>) -> ValueCow<'a> {
    match rest.split_first() {
        Some((name, rest)) => borrowed(get(&name.to_kstr()), rest),
        None => missing(),
    }
}

fn contact_field<'a>(contact: &'a Contact, name: &str) -> Option<&'a String> {
    match name {
        "email" => Some(&contact.email),
        "first_name" => contact.first_name.as_ref(),
        "last_name" => contact.last_name.as_ref(),
        "title" => contact.title.as_ref(),
        "phone" => contact.phone.as_ref(),
        "company" => contact.company.as_ref(),
        "timezone" => contact.timezone.as_ref(),
        "locale" => contact.locale.as_ref(),
        "lifecycle_stage" => contact.lifecycle_stage.as_ref(),
        "dot_number" => contact.dot_number.as_ref(),
        _ => None,
    }
}

/// What stands at the end of a path in merge data. `None`: nothing does, or the answer is a property of a value such as its `size`.
fn walk<'a>(mut value: &'a Json, path: &[ScalarCow<'_>]) -> Option<&'a Json> {
    for key in path {
        value = match value {
            Json::Object(object) => object.get(key.to_kstr().as_str())?,
            Json::Array(items) => {
                let index = key.to_integer()?;
                let index = if index < 0 { index + i64::try_from(items.len()).ok()? } else { index };
                items.get(usize::try_from(index).ok()?)?
            }
            _ => return None,
        };
    }
    Some(value)
}

impl RenderScope<'_> {
    /// The value at a path in merge data. Only lists, objects and their properties need the converted data.
    fn json_at<'s>(&'s self, cell: &'s OnceCell<Value>, root: &'s Json, path: &[ScalarCow<'_>]) -> ValueCow<'s> {
        let converted = || cell.get_or_init(|| self.liquid(root, 0));
        match walk(root, path) {
            Some(Json::Null) => missing(),
            Some(Json::String(text)) if text.is_empty() => missing(),
            Some(Json::String(text)) => ValueCow::Borrowed(text),
            Some(scalar @ (Json::Bool(_) | Json::Number(_))) => ValueCow::Owned(self.liquid(scalar, 0)),
            Some(Json::Array(_) | Json::Object(_)) => tail(converted(), path),
            None if path.iter().any(is_property) => tail(converted(), path),
            None => missing(),
        }
    }

    /// JSON as a Liquid value. Nothing more is converted once the budget is spent.
    fn liquid(&self, json: &Json, depth: u32) -> Value {
        self.take(1);
        if self.spent.get().is_some() {
            return Value::Nil;
        }
        match json {
            Json::Null => Value::Nil,
            Json::Bool(flag) => Value::scalar(*flag),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Value::scalar(whole),
                (None, Some(float)) => Value::scalar(float),
                (None, None) => Value::Nil,
            },
            Json::String(text) => {
                self.take(text_steps(text.len()));
                Value::scalar(KString::from_ref(text))
            }
            _ if depth >= VALUE_DEPTH => Value::Nil,
            Json::Array(items) => Value::Array(items.iter().map(|item| self.liquid(item, depth + 1)).collect()),
            Json::Object(object) => Value::Object(
                object.iter().map(|(key, value)| (KString::from_ref(key), self.liquid(value, depth + 1))).collect(),
            ),
        }
    }
}

/// Whether a key may name a property of a list, an object or a text, rather than what is in it.
fn is_property(key: &ScalarCow<'_>) -> bool {
    matches!(key.to_kstr().as_str(), "size" | "first" | "last")
}
