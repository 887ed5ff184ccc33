// A worker with nothing but the standard library of Go:  go run worker.go http://127.0.0.1:8080 gpu 4
// One conversation: each call keeps all leases alive, brings results, and waits for work. SIGTERM and Ctrl-C stop it gracefully.
package main

import ("bytes"; "context"; "encoding/json"; "fmt"; "log"; "math/rand"; "net/http"; "os"; "os/signal"; "strconv"; "syscall"; "time")

type object = map[string]any; const once = 1 << 30 // the beat of what has ended with being handed over: it takes a slot only
type lease struct { Lease string; Beat int `json:"beat_every_ms"`; Task struct { Payload struct{ N, Ms int } } }
type answer struct { Accepted []struct{ Lease, Status string }; Leases []lease; Lost []string; Commands []struct{ Type string }; seq, code int; problem string }
type holding struct { beat int; stop context.CancelFunc }; type end struct { key string; result object }
func less(a, b int) int { if a < b { return a }; return b }
func handle(ctx context.Context, one lease) (any, error) { // your work; ctx ends when the task is cancelled, or the lease lost
	select {
	case <-time.After(time.Duration(one.Task.Payload.Ms) * time.Millisecond): return object{"doubled": 2 * one.Task.Payload.N}, nil
	case <-ctx.Done(): return nil, ctx.Err()
	}
}
func work(ctx context.Context, one lease) object {
	result, err := handle(ctx, one)
	if err == nil { return object{"lease": one.Lease, "outcome": "succeeded", "result": result} }
	return failed(one.Lease, "error", err.Error())
}
func failed(token, code, why string) object { return object{"lease": token, "outcome": "failed", "error": object{"code": code, "description": why}} }
func post(url string, seq int, body []byte) *answer { // until it is answered: the same seq gets the same answer
	for pause := 100; ; pause = less(2*pause, 2000) {
		request, _ := http.NewRequest("POST", url, bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json") // and Authorization: Bearer …, where tokens are asked for
		if reply, err := http.DefaultClient.Do(request); err == nil {
			told, problem := answer{seq: seq}, struct{ Detail string }{}
			if reply.StatusCode == 200 { err = json.NewDecoder(reply.Body).Decode(&told) } else { json.NewDecoder(reply.Body).Decode(&problem) }
			if reply.Body.Close(); reply.StatusCode == 200 && err == nil { return &told }
			if code := reply.StatusCode; code >= 400 && code < 500 && code != 408 && code != 429 { return &answer{seq: seq, code: code, problem: problem.Detail} }
		}
		time.Sleep(time.Duration(pause/2+rand.Intn(pause/2)) * time.Millisecond)
	}
}

func main() {
	url, queue := os.Args[1], os.Args[2]; slots, _ := strconv.Atoi(os.Args[3]); host, _ := os.Hostname()
	path, session, answers := fmt.Sprintf("%s/v1/workers/%s-%d-go", url, host, os.Getpid()), strconv.FormatInt(time.Now().UnixNano(), 36), make(chan *answer)
	held, ended, done := map[string]holding{}, map[string]object{}, make(chan end, 10_000) // whose end is not recorded; how they ended
	signals, deadline, listing, singly, spoilt := make(chan os.Signal, 1), time.Time{}, false, false, map[string]bool{}; signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	keep := func(one end) { if one.result["lease"] == "" { delete(held, one.key) } else if held[one.key].stop != nil { ended[one.key] = one.result } }
	for seq := 1; deadline.IsZero() || len(held) > 0 && time.Now().Before(deadline); seq++ {
		for len(done) > 0 { keep(<-done) }; singly = singly && len(ended) > 0
		results, kept, sum, wait, free := []object{}, []string{}, uint64(0), 20_000, 0
		for token, one := range held {
			if wait = less(wait, one.beat); one.beat == once { continue }
			if result := ended[token]; result != nil && (len(results) == 0 || !singly) { results = append(results, result); continue }
			number, _ := strconv.ParseUint(token[len(token)-8:], 16, 64)
			kept, sum = append(kept, token), sum^number
		}
		if deadline.IsZero() { free = -less(0, len(held)-len(ended)-slots) } else { wait = less(wait, int(time.Until(deadline)/time.Millisecond)+1) }
		mine := object{"count": len(kept), "digest": fmt.Sprintf("%08x", sum)}
		if listing { mine = object{"count": len(kept), "leases": kept} }
		body, _ := json.Marshal(object{"seq": seq, "session": session, "wait_ms": wait, "held": mine, "results": results, "want": []object{{"queue": queue, "max": free}}})
		interrupt, news := signals, done
		if len(results) > 0 || listing { interrupt, news, listing = nil, nil, false } // nothing may overtake what says something
		go func(seq int) { answers <- post(path+"/sync", seq, body) }(seq)
		for told := (&answer{}); told.seq < seq; { // a result does not wait for the call that waits for work, whose answer comes nevertheless
			select { case told = <-answers: case one := <-news: keep(one); told = &answer{seq: seq}
			case <-interrupt: deadline = time.Now().Add(10 * time.Second); told = &answer{seq: seq} }
			if token := ""; told.code != 0 && told.seq == seq { // one result is to blame: they go one by one, and that one as failed
				if len(results) > 0 && (told.code == 400 || told.code == 413 || told.code == 422) { token = results[0]["lease"].(string) }
				if token == "" || spoilt[token] { log.Fatal(told.problem) }
				if singly = true; len(results) == 1 { ended[token], spoilt[token] = failed(token, "report_refused", told.problem), true }
			}
			for _, one := range told.Accepted { if one.Status != "unavailable" { told.Lost = append(told.Lost, one.Lease) } }
			for _, token := range told.Lost { if one, known := held[token]; known { one.stop(); delete(held, token); delete(ended, token) } }
			for _, one := range told.Commands { switch one.Type { case "list_leases": listing = true; case "stop": deadline = time.Now(); case "drain": if deadline.IsZero() { deadline = time.Now().AddDate(1, 0, 0) } } } // an operator says so
			for number, one := range told.Leases {
				ctx, stop := context.WithCancel(context.Background()); key := one.Lease
				if key == "" { key, one.Beat = fmt.Sprint(told.seq, number), once }
				held[key] = holding{one.Beat, stop}
				go func(one lease) { done <- end{key, work(ctx, one)} }(one)
			}
		}
	}
	request, _ := http.NewRequest("DELETE", path+"?session="+session, nil); http.DefaultClient.Do(request) // what is still held goes to others at once
}
