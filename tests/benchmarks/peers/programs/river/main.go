// River as a peer: `river VERB '{"json": "options"}'`; see ../../program.py for what each verb does.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const chunk = 10_000

type options struct {
	Address    string  `json:"address"`
	Records    string  `json:"records"`
	Count      int     `json:"count"`
	Rate       float64 `json:"rate"`
	FirstDueUS int64   `json:"first_due_us"`
	PeriodUS   int64   `json:"period_us"`
	MaxWorkers int     `json:"max_workers"`
	CooldownMS int     `json:"cooldown_ms"` // 0: River's default
	PollMS     int     `json:"poll_ms"`     // 0: River's default
}

type noop struct {
	Number int     `json:"number"`
	Stamp  float64 `json:"stamp"`
}

func (noop) Kind() string { return "noop" }

// worker keeps what it saw, four little-endian doubles a task (key, number, stamp, start), and writes it out in batches.
type worker struct {
	river.WorkerDefaults[noop]
	lock sync.Mutex
	seen bytes.Buffer
}

func (w *worker) Work(_ context.Context, job *river.Job[noop]) error {
	start := float64(time.Now().UnixMicro())
	w.lock.Lock()
	defer w.lock.Unlock()
	return binary.Write(&w.seen, binary.LittleEndian, [4]float64{0, float64(job.Args.Number), job.Args.Stamp, start})
}

func (w *worker) flush(path string) {
	file := must(os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644))
	for range time.Tick(10 * time.Millisecond) {
		w.lock.Lock()
		must(file.Write(w.seen.Bytes()))
		w.seen.Reset()
		w.lock.Unlock()
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	var given options
	if err := json.Unmarshal([]byte(os.Args[2]), &given); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	pool := must(pgxpool.New(ctx, given.Address))
	verbs := map[string]func(context.Context, *pgxpool.Pool, options) float64{
		"prepare": prepare, "enqueue": enqueue, "send": send, "work": work,
	}
	fmt.Printf("{\"seconds\": %f}\n", verbs[os.Args[1]](ctx, pool, given))
}

func prepare(ctx context.Context, pool *pgxpool.Pool, _ options) float64 {
	migrator := must(rivermigrate.New(riverpgxv5.New(pool), nil))
	must(migrator.Migrate(ctx, rivermigrate.DirectionUp, nil))
	return 0
}

func inserter(ctx context.Context, pool *pgxpool.Pool) *river.Client[pgx.Tx] {
	client := must(river.NewClient(riverpgxv5.New(pool), &river.Config{}))
	must(pool.Exec(ctx, "select 1"))
	return client
}

func enqueue(ctx context.Context, pool *pgxpool.Pool, given options) float64 {
	client := inserter(ctx, pool)
	begin := time.Now()
	for from := 0; from < given.Count; from += chunk {
		var jobs []river.InsertManyParams
		for index := from; index < min(from+chunk, given.Count); index++ {
			insert, stamp := &river.InsertOpts{}, int64(0)
			if given.FirstDueUS > 0 {
				stamp = given.FirstDueUS + int64(index)*given.PeriodUS
				insert.ScheduledAt = time.UnixMicro(stamp)
			}
			jobs = append(jobs, river.InsertManyParams{Args: noop{index, float64(stamp)}, InsertOpts: insert})
		}
		must(client.InsertManyFast(ctx, jobs))
	}
	return time.Since(begin).Seconds()
}

func send(ctx context.Context, pool *pgxpool.Pool, given options) float64 {
	client := inserter(ctx, pool)
	begin := time.Now()
	for index := range given.Count {
		time.Sleep(time.Until(begin.Add(time.Duration(float64(index) / given.Rate * float64(time.Second)))))
		must(client.Insert(ctx, noop{index, float64(time.Now().UnixMicro())}, nil))
	}
	return time.Since(begin).Seconds()
}

func work(ctx context.Context, pool *pgxpool.Pool, given options) float64 {
	handler := &worker{}
	workers := river.NewWorkers()
	river.AddWorker(workers, handler)
	go handler.flush(given.Records)
	client := must(river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: given.MaxWorkers}},
		Workers:           workers,
		FetchCooldown:     time.Duration(given.CooldownMS) * time.Millisecond,
		FetchPollInterval: time.Duration(given.PollMS) * time.Millisecond,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}))
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	<-client.Stopped()
	return 0
}
